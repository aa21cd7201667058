"""How people ask for the facts of a chronicle, and how they begin to tell them.

The names are those of `asking_manual`. `{e}` is the town or the person.
"""

from __future__ import annotations

from grammar import alternatives

CHRONICLE = {
    name: alternatives(text)
    for name, text in {
        # founder
        "FOUNDED": """founded | established | settled | started | created | built | begun |
            built up | set up | first settled | raised | brought into being |
            called into life | laid out | planned""",
        "FOUND": """found | establish | settle | start | create | build | begin | set up |
            raise | lay out""",
        "NOUN_FOUNDER": """founder | first settler | creator | founding father |
            establisher | first lord | father | originator | initiator | town founder |
            settler | first ruler | builder | beginner | first master""",
        "WH_FOUNDER": """who <FOUNDED> {e} | who was the <NOUN_FOUNDER> of {e} |
            who was {e} <FOUNDED> by | by whom was {e} <FOUNDED> |
            who is the <NOUN_FOUNDER> of {e} | who built the first <HOUSES> of {e} |
            which <PERSON> <FOUNDED> {e} | who began {e} | who did <FOUND> {e} |
            who <FOUNDED> the <TOWN> {e} | who was it that <FOUNDED> {e} |
            who settled first in {e} | who do the people of {e} call their <NOUN_FOUNDER> |
            what <PERSON> <FOUNDED> {e} | to whom does {e} owe its existence |
            who raised the first <HOUSES> in {e} | who came first to {e} |
            who is said to have <FOUNDED> {e} | whose town is {e} |
            who laid the first stone of {e} | who is behind the founding of {e} |
            how did {e} begin and who <FOUNDED> it | who is shown by the statue in {e} |
            who had {e} <FOUNDED> | who should {e} thank for its existence |
            who was the first to live in {e} |
            what is the name of the <NOUN_FOUNDER> of {e} | who started the <TOWN> of {e}""",
        "HOUSES": "houses | homes | walls | streets | buildings | huts",
        "PERSON": """person | man or woman | ruler | lord | noble | leader |
            historical figure | personality""",
        "TOWN": "town | city | place | settlement | village | community",
        "IND_FOUNDER": """who <FOUNDED> {e} | who the <NOUN_FOUNDER> of {e} was |
            by whom {e} was <FOUNDED> | who {e} was <FOUNDED> by |
            which <PERSON> <FOUNDED> {e} | who built the first <HOUSES> of {e} |
            who began {e} | the <PERSON> who <FOUNDED> {e} | who first settled in {e} |
            who is the <NOUN_FOUNDER> of {e}""",
        "SAY_FOUNDER": """{e} was <FOUNDED> by | the <NOUN_FOUNDER> of {e} was |
            the <NOUN_FOUNDER> of {e} is | the <TOWN> {e} was <FOUNDED> by |
            the first <HOUSES> of {e} were <FOUNDED> by |
            the <PERSON> who <FOUNDED> {e} is | {e} has been <FOUNDED> by |
            {e} owes its existence to | the one who <FOUNDED> {e} was |
            {e} was the work of | {e} goes back to |
            it was <FOUNDED> long ago, the <TOWN> {e}, by | {e} is the town of |
            the people of {e} honour their <NOUN_FOUNDER> |
            in the beginning {e} was <FOUNDED> by | the <TOWN> of {e} began with |
            the founding of {e} is owed to | {e} was called into life by | {e}, <FOUNDED> by""",
        "CMD_FOUNDER": """{e} <FOUNDED> by whom | {e} <FOUNDED> by |
            name the <PERSON> who <FOUNDED> {e} | founding of {e} | {e} who <FOUNDED> it |
            <PERSON> who <FOUNDED> {e} | origins of {e} | beginnings of {e} |
            foundation of {e}""",
        # charter
        "YEAR": "year | date | time | year exactly | moment",
        "RIGHTS": """charter | town charter | town rights | market rights | freedom |
            city rights | city charter | privileges | liberty | rights | town privileges |
            royal charter | town status | free status""",
        "NOUN_CHARTER": """charter | year of the charter | charter year |
            date of the charter | charter date | town charter | town rights |
            market rights | freedom | city rights | year of freedom |
            date of the market rights | age of the charter | royal charter |
            year of town rights | seal date""",
        "WH_CHARTER": """when did {e} get its <RIGHTS> | when did {e} receive its <RIGHTS> |
            in what year did {e} get its <RIGHTS> | when was {e} given its <RIGHTS> |
            when did {e} become a <FREETOWN> | in which year did {e} receive the <RIGHTS> |
            what year did {e} get its <RIGHTS> | when were the <RIGHTS> of {e} granted |
            since when is {e} a <FREETOWN> | since when has {e} had <RIGHTS> |
            how old is the <RIGHTS> of {e} | when was {e} made a <FREETOWN> |
            what is the <YEAR> of the <RIGHTS> of {e} |
            from what year is the <RIGHTS> of {e} | when was {e} chartered |
            in what year was {e} chartered | when did {e} gain its <RIGHTS> |
            when was the <RIGHTS> of {e} signed | what year is on the seal of {e} |
            when did {e} become free | when did the kings give {e} its <RIGHTS> |
            how long has {e} been a <FREETOWN> | from when does the <RIGHTS> of {e} date |
            when did {e} obtain <RIGHTS> | which year brought {e} its <RIGHTS> |
            when was {e} freed | when was {e} raised to a <FREETOWN> |
            what date does the <RIGHTS> of {e} bear |
            in which year was {e} granted <RIGHTS> | when did {e} win its <RIGHTS> |
            when was {e} allowed to hold a market | when did {e} turn into a <FREETOWN> |
            when was the <RIGHTS> for {e} issued""",
        "FREETOWN": """town | free town | city | free city | market town | proper town |
            real city | chartered town""",
        "IND_CHARTER": """when {e} got its <RIGHTS> | when {e} received its <RIGHTS> |
            when {e} became a <FREETOWN> | when {e} became free |
            in which year {e} got its <RIGHTS> | in what year {e} received its <RIGHTS> |
            since when {e} is a <FREETOWN> | the year in which {e} received its <RIGHTS> |
            the year {e} was made a <FREETOWN> | when the <RIGHTS> of {e} were granted |
            when {e} was chartered | when {e} was given <RIGHTS> |
            how old the <RIGHTS> of {e} is | when {e} was made a <FREETOWN>""",
        "SAY_CHARTER": """{e} received its <RIGHTS> in | {e} got its <RIGHTS> in |
            the <RIGHTS> of {e} dates from | {e} became a <FREETOWN> in |
            the <RIGHTS> of {e} were granted in | {e} was made a <FREETOWN> in |
            {e} has been a <FREETOWN> since | {e} was given its <RIGHTS> in the year |
            the <YEAR> of the <RIGHTS> of {e} is | {e} was chartered in |
            the <RIGHTS> of {e} is from | {e} is a <FREETOWN> since |
            the kings gave {e} its <RIGHTS> in | {e} has had <RIGHTS> since |
            {e} was freed in | {e} obtained the <RIGHTS> in |
            the seal of {e} shows the year | the <RIGHTS> of {e} was signed in |
            {e} counts as a <FREETOWN> since the year | {e} gained its <RIGHTS> in""",
        "CMD_CHARTER": """{e} <RIGHTS> year | {e} <RIGHTS> since |
            year {e} became a <FREETOWN> | year {e} got its <RIGHTS> |
            {e} <FREETOWN> since | {e} when <RIGHTS> | {e} <RIGHTS> granted | {e} <RIGHTS> |
            year of {e}""",
        # river
        "RIVER": """river | stream | water | waterway | body of water | flowing water |
            watercourse | current""",
        "RUNS": "runs | flows | passes | goes | streams | winds | moves | comes",
        "RUN": "run | flow | pass | go | stream | wind | move | come",
        "THROUGH": "through | past | by | along | across | near | at | close to | around",
        "NOUN_RIVER": """river | river name | name of the river | stream | water |
            waterway | local river | brook | name of the stream | body of water |
            watercourse | town river | riverside""",
        "WH_RIVER": """what <RIVER> <RUNS> <THROUGH> {e} |
            which <RIVER> <RUNS> <THROUGH> {e} | on which <RIVER> does {e} lie |
            which <RIVER> is {e} on | what <RIVER> is {e} on |
            what is the <NOUN_RIVER> of {e} | what is the <NOUN_RIVER> in {e} |
            which <RIVER> does {e} lie on | what <RIVER> does {e} stand on |
            what <RUNS> <THROUGH> {e} | at which <RIVER> is {e} |
            what is the <RIVER> in {e} called | how is the <RIVER> in {e} called |
            which <RIVER> can you see in {e} | by which <RIVER> was {e} built |
            what's the <RIVER> at {e} | which <RIVER> do <I> cross in {e} |
            which <RIVER> drives the mills of {e} | what <RIVER> crosses {e} |
            in which <RIVER> do people fish in {e} |
            what is the name of the <RIVER> <THROUGH> {e} |
            over which <RIVER> goes the bridge of {e} |
            along which <RIVER> do boats reach {e} | where do the people of {e} fish |
            does a <RIVER> <RUN> <THROUGH> {e} and which |
            is {e} on a <RIVER> and which one | {e} lies on which <RIVER> |
            which <RIVER> is near {e} | what <RIVER> feeds {e} |
            on what <RIVER> are the mills of {e} | which <RIVER> gives {e} its water |
            on the banks of which <RIVER> is {e}""",
        "IND_RIVER": """what <RIVER> <RUNS> <THROUGH> {e} |
            which <RIVER> <RUNS> <THROUGH> {e} | on which <RIVER> {e} lies |
            which <RIVER> {e} is on | what the <RIVER> in {e} is called |
            how the <RIVER> of {e} is called | the <RIVER> that <RUNS> <THROUGH> {e} |
            which <RIVER> {e} lies on | at which <RIVER> {e} is |
            which <RIVER> crosses {e} | the <RIVER> on which {e} lies""",
        "SAY_RIVER": """{e} lies on the river | {e} lies on the | through {e} <RUNS> the |
            the <NOUN_RIVER> of {e} is the | the <RIVER> <THROUGH> {e} is the |
            the <RIVER> that <RUNS> <THROUGH> {e} is called the | {e} is on the |
            {e} is situated on the | {e} stands on the river |
            the <NOUN_RIVER> in {e} is called the | the <RIVER> of {e} is called |
            the mills of {e} stand on the | the bridge of {e} crosses the |
            {e} was built on the | <THROUGH> {e} <RUNS> the river |
            {e} lies on the banks of the | boats come to {e} on the |
            the people of {e} fish in the | the town {e} is on the river |
            {e} sits on the river""",
        "CMD_RIVER": """{e} lies on which <RIVER> | <RIVER> <THROUGH> {e} | <RIVER> in {e} |
            <RIVER> at {e} | {e} on the <RIVER> | {e} <RIVER> name |
            name the <RIVER> <THROUGH> {e} | <RIVER> that <RUNS> <THROUGH> {e} |
            the <RIVER> {e} lies on""",
        # birth
        "NOUN_BIRTH": """birthplace | place of birth | hometown | home town | home |
            origin | native town | birth town | town of birth | native place | cradle |
            childhood home | birth | roots | place of origin | parents' town""",
        "WH_BIRTH": """where was {e} born | where does {e} come from |
            in which <TOWN> was {e} born | where is {e} from | where did {e} come from |
            what is the <NOUN_BIRTH> of {e} | in what <TOWN> was {e} born |
            which <TOWN> is {e} from | where did {e} grow up |
            where was the <NOUN_BIRTH> of {e} | what <TOWN> was {e} born in |
            what <TOWN> does {e} come from | where did {e} live as a child |
            where did the parents of {e} live | where was the home of {e} |
            where did the life of {e} begin | where is the <NOUN_BIRTH> of {e} |
            from which <TOWN> did {e} come | which <TOWN> can call {e} its child |
            where is {e} originally from | where did {e} see the light of day |
            where did the cradle of {e} stand | in which <TOWN> did {e} grow up |
            which <TOWN> is the <NOUN_BIRTH> of {e} |
            where does the family of {e} come from |
            in which <TOWN> did {e} spend childhood | whence came {e} |
            where was {e} brought into the world | to which <TOWN> was {e} born |
            where did {e} spend the first years | which <TOWN> did {e} come from |
            where were {e}'s parents at home | where was little {e} at home""",
        "IND_BIRTH": """where {e} was born | where {e} comes from | where {e} is from |
            in which <TOWN> {e} was born | where {e} grew up | which <TOWN> {e} is from |
            where {e} came from | in which <TOWN> {e} grew up | what <TOWN> {e} comes from |
            where {e} lived as a child | where the cradle of {e} stood |
            where the <NOUN_BIRTH> of {e} was""",
        "SAY_BIRTH": """{e} was born in | {e} comes from | {e} came from |
            the <NOUN_BIRTH> of {e} was | the <NOUN_BIRTH> of {e} is |
            {e} was born in the <TOWN> of | {e} grew up in | {e} is from |
            as a child {e} lived in | {e} was a child of |
            the <TOWN> where {e} was born is | {e} is a native of |
            {e} spent the first years in | {e} first saw the light in |
            the <TOWN> of {e} was | the parents of {e} lived in |
            the house where {e} was born stands in | {e}, born in |
            the life of {e} began in | the family of {e} lived in | {e} originally came from""",
        "CMD_BIRTH": """{e} born where | {e} born in | {e} born | {e} where born |
            {e} comes from | {e} from | <TOWN> where {e} was born | {e} grew up in |
            where {e} born | <TOWN> of {e}""",
        # death
        "NOUN_DEATH": """death | year of death | date of death | death date | death year |
            end | day of death | last year | passing | burial | funeral | demise |
            end of life | tombstone date | time of death""",
        "DIE": """die | pass away | perish | leave this world | depart this life | expire |
            find death | breathe the last breath""",
        "DIED": """died | passed away | perished | was buried | left this world | expired |
            met death | was laid to rest | was mourned""",
        "WH_DEATH": """when did {e} <DIE> | in what year did {e} <DIE> |
            when was {e} buried | what year did {e} <DIE> | in which year did {e} <DIE> |
            when was the <NOUN_DEATH> of {e} | what is the <NOUN_DEATH> of {e} |
            until when did {e} live | when did the life of {e} end | how long did {e} live |
            what <YEAR> is on the tombstone of {e} | when was the end of {e} |
            in what year was {e} buried | when was {e} mourned |
            when did the people mourn {e} | what was the <NOUN_DEATH> of {e} |
            which year did {e} <DIE> | when did {e} come to an end |
            until what year was {e} alive | when was {e} dead |
            what was the last year of {e} | when did they bury {e} |
            when did {e}'s life end | up to which year did {e} live |
            when was {e} laid to rest | when was {e} carried to the grave |
            since when is {e} dead | how long ago did {e} <DIE> |
            in which year did the bells toll for {e} |
            when did {e} close the eyes for ever | in which year was {e} mourned""",
        "IND_DEATH": """when {e} <DIED> | in which year {e} <DIED> |
            in what year {e} <DIED> | what year {e} <DIED> | until when {e} lived |
            when the life of {e} ended | the year in which {e} <DIED> |
            when {e} was buried | how long {e} lived | when the <NOUN_DEATH> of {e} was |
            since when {e} is dead | the year {e} <DIED>""",
        "SAY_DEATH": """{e} <DIED> in | {e} <DIED> in the year | the life of {e} ended in |
            the <NOUN_DEATH> of {e} was | the <NOUN_DEATH> of {e} is | {e} lived until |
            {e} was buried in | the <NOUN_DEATH> of {e} was in | {e} has been dead since |
            the people mourned {e} in | the tombstone of {e} says |
            {e} lived until the year | the year in which {e} <DIED> is | {e} is dead since |
            {e} was alive until | death came to {e} in | the grave of {e} bears the year |
            {e} finally <DIED> in | the bells rang for {e} in""",
        "CMD_DEATH": """{e} died when | {e} <DIED> | {e} died | {e} dead |
            {e} died in what year | {e} dead since | {e} death | {e} when died |
            year {e} died | {e} lived until""",
        # work
        "BUILD": """build | construct | create | erect | leave behind | raise | make |
            pay for | set up | put up | design | found | give the country | donate |
            leave us | accomplish""",
        "BUILT": """built | constructed | created | erected | left behind | raised | made |
            paid for | put up | designed | commissioned | donated | accomplished | ordered""",
        "BUILDING": """building | construction | structure | work | monument | edifice |
            great building | thing | famous building""",
        "NOUN_WORK": """work | great work | building | creation | legacy | monument |
            construction | building project | achievement | famous building | masterpiece |
            structure | buildings | project | life's work | claim to fame | edifice | gift""",
        "WH_WORK": """what did {e} <BUILD> | what was <BUILT> by {e} |
            which <BUILDING> did {e} <BUILD> | what is {e} known for |
            what is {e} famous for | what is {e} remembered for |
            what <BUILDING> did {e} <BUILD> | what is the <NOUN_WORK> of {e} |
            which <BUILDING> was <BUILT> by {e} | what has {e} <BUILT> |
            what was the <NOUN_WORK> of {e} | which <BUILDING> is by {e} |
            for what is {e} remembered | why is {e} remembered | what do <I> know {e} for |
            what did {e} do | why is {e} famous | what do we owe to {e} |
            what did {e} have <BUILT> | what <BUILDING> comes from {e} |
            what did {e} spend money on | which <BUILDING> do we thank {e} for |
            what was {e} famous for | what kind of <BUILDING> did {e} <BUILD> |
            what reminds us of {e} | what <BUILDING> goes back to {e} |
            what was {e} working on | what did the masons <BUILD> for {e} |
            which <BUILDING> is {e} known for | what did {e} use the taxes for |
            what made {e} famous | what did {e} achieve""",
        "IND_WORK": """what {e} <BUILT> | what was <BUILT> by {e} |
            which <BUILDING> {e} <BUILT> | what {e} is known for | what {e} is famous for |
            what {e} is remembered for | what <BUILDING> {e} <BUILT> | what {e} did |
            the <BUILDING> that {e} <BUILT> | why {e} is famous |
            what the <NOUN_WORK> of {e} was | which <BUILDING> was <BUILT> by {e} |
            what {e} had <BUILT>""",
        "SAY_WORK": """{e} <BUILT> | {e} is known for | {e} is remembered for |
            {e} is famous for | the <NOUN_WORK> of {e} was | the <NOUN_WORK> of {e} is |
            the <BUILDING> that {e} <BUILT> is | we thank {e} for | {e} had <BUILT> |
            {e} was the builder of | {e} became famous by | {e} gave the country |
            to {e} we owe | the name of {e} lives on in | {e} spent the taxes on |
            {e} was known for | what {e} <BUILT> was | the masons of {e} <BUILT> |
            {e} ordered the building of | {e} has <BUILT>""",
        "CMD_WORK": """{e} <BUILT> what | {e} <BUILT> | {e} known for | {e} famous for |
            <BUILDING> by {e} | <BUILDING> <BUILT> by {e} | {e} builder of |
            things <BUILT> by {e} | name a <BUILDING> <BUILT> by {e} | deeds of {e}""",
    }.items()
}
