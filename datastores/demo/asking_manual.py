"""How people ask for the facts of a machine's manual, and how they begin to tell them.

`WH_*` are questions, `IND_*` the same after "tell me", `NOUN_*` what the value is called, `SAY_*`
sentences to complete. `{e}` is the error or the part.
"""

from __future__ import annotations

from grammar import alternatives

MANUAL = {
    name: alternatives(text)
    for name, text in {
        "FIX": """fix | repair | solve | cure | clear | get rid of | resolve | eliminate |
            correct | handle | deal with | remedy | treat | take care of | sort out |
            overcome | remove | stop | put right | rectify | mend | address | troubleshoot |
            tackle | undo | reset | delete | work on | get past | react to | respond to |
            get over | make good""",
        "FIXED": """fixed | repaired | solved | cured | cleared | resolved | eliminated |
            corrected | handled | remedied | treated | sorted out | removed | stopped |
            put right | rectified | mended | addressed | dealt with | overcome | undone""",
        "FIXES": """fixes | repairs | solves | cures | clears | resolves | helps against |
            removes | eliminates | gets rid of | works against | stops | helps with |
            corrects | remedies""",
        "ABOUT": """about | with | against | for | in case of | when I see | when I get |
            after | if I get | if there is | when it shows | if the display shows | on |
            if it says | in the event of | once I have | upon""",
        "APPEARS": """appears | comes up | shows up | occurs | is shown | happens |
            pops up | is displayed | comes on | is reported | turns up | lights up |
            strikes | flashes""",
        "COMES": """comes up | appears | occurs | happens | shows up | keeps coming back |
            is displayed | pops up | turns up | is there | arises | is shown | flashes""",
        "SHOWS": """shows | says | reports | displays | gives | signals | stops with |
            throws | has | prints | blinks | complains about | comes up with | raises |
            flashes""",
        "MACHINE": """the machine | my machine | our machine | the display | the screen |
            it | the panel | the control unit | the {m} | our {m} | the device |
            this thing | the system""",
        "MUST": "should | must | have to | need to | can | ought to | shall | could | may",
        "NEEDED": """needed | required | necessary | used | recommended | to be ordered |
            to be replaced | due | called for | wanted""",
        "NEED": """need | order | buy | replace | get | use | require | want | fetch |
            change | swap | exchange""",
        # cause
        "NOUN_CAUSE": """meaning | cause | reason | explanation | definition | problem |
            fault | description | root cause | diagnosis | trouble | trigger | source |
            origin | interpretation | underlying fault | defect | issue | failure | damage""",
        "WH_CAUSE": """what does {e} mean | what is {e} | what causes {e} |
            why do <I> get {e} | why does <MACHINE> <SHOWS> {e} |
            what is wrong <WHEN> <MACHINE> <SHOWS> {e} | what is behind {e} |
            what lies behind {e} | what does {e} stand for | what triggers {e} |
            what is the matter with {e} | which <NOUN_CAUSE> is {e} | what leads to {e} |
            how does {e} come about | where does {e} come from | what is meant by {e} |
            what does it mean <WHEN> <MACHINE> <SHOWS> {e} | why {e} | why is there {e} |
            what's {e} | what brings up {e} | what happened <WHEN> <MACHINE> <SHOWS> {e} |
            what kind of <NOUN_CAUSE> is {e} | what went wrong with {e} |
            what is broken <WHEN> {e} <COMES> | why did {e} <COMEUP> |
            what does {e} tell <ME> | what does {e} indicate | what does {e} point to |
            what makes {e} appear | how do you explain {e} | what can cause {e} |
            what is {e} about | what does {e} refer to | what could {e} be |
            why am I seeing {e} | what raises {e} | what has failed with {e} |
            what does the code {e} want from me | why is <MACHINE> stopping with {e} |
            which damage causes {e}""",
        "WHEN": "when | if | whenever | in case | once | as soon as | now that",
        "COMEUP": "come up | appear | occur | happen | show up | pop up | come on",
        "IND_CAUSE": """what {e} means | what {e} is | what causes {e} |
            why <MACHINE> <SHOWS> {e} | why <I> get {e} | what is behind {e} |
            what {e} stands for | what lies behind {e} | what triggers {e} |
            why {e} <COMES> | what is wrong <WHEN> <MACHINE> <SHOWS> {e} |
            where {e} comes from | what {e} indicates | what {e} is about |
            what is meant by {e} | what kind of <NOUN_CAUSE> {e} is | what leads to {e} |
            what {e} is telling <ME>""",
        "SAY_CAUSE": """{e} means | {e} is caused by | the <NOUN_CAUSE> of {e} is |
            {e} stands for | {e} points to |
            <WHEN> <MACHINE> <SHOWS> {e}, the <NOUN_CAUSE> is | {e} comes from |
            {e} indicates | {e} is | {e} is due to | {e} is triggered by | {e} signals |
            behind {e} there is | {e} tells you that there is |
            the <NOUN_CAUSE> behind {e} is | <WHEN> {e} <COMES>, there is |
            {e} happens because of | {e} refers to | {e} is the code for |
            what causes {e} is | the <NOUN_CAUSE> for {e} is called | {e} says there is |
            {e} is raised by | {e} results from | {e} occurs after | you get {e} because of""",
        "CMD_CAUSE": """explain {e} | describe {e} | explain the <NOUN_CAUSE> of {e} |
            define {e} | interpret {e} | decode {e} | translate {e} | diagnose {e} |
            clarify {e}""",
        # remedy
        "NOUN_REMEDY": """fix | remedy | cure | solution | repair | repair step |
            corrective action | answer | treatment | workaround | procedure | instruction |
            measure | action | next step | way out | troubleshooting | advice |
            countermeasure | resolution | help | repair procedure | steps | tip""",
        "WH_REMEDY": """how do <I> <FIX> {e} | how can <I> <FIX> {e} | how to <FIX> {e} |
            what should <I> do <ABOUT> {e} | what do <I> do <ABOUT> {e} |
            how should <I> <FIX> {e} | how is {e} <FIXED> | how can {e} be <FIXED> |
            what <MUST> <I> do <WHEN> {e} <APPEARS> | what can be done <ABOUT> {e} |
            what helps against {e} | what <FIXES> {e} | what to do <ABOUT> {e} |
            what must be done <ABOUT> {e} | what now with {e} |
            is there a <NOUN_REMEDY> for {e} | what is the best <NOUN_REMEDY> for {e} |
            how does one <FIX> {e} | what will <FIX> {e} | how would you <FIX> {e} |
            how could <I> <FIX> {e} | what am I supposed to do <ABOUT> {e} |
            which <NOUN_REMEDY> <FIXES> {e} |
            what does the manual say <ABOUT> {e} to <FIX> it | how must {e} be <FIXED> |
            do you have a <NOUN_REMEDY> for {e} | what is there to do <ABOUT> {e} |
            how are <I> to <FIX> {e} | what do <I> have to do to <FIX> {e} |
            what is the way to <FIX> {e} | what next after {e} |
            how do <I> make {e} go away | how do <I> get <MACHINE> running again after {e} |
            how did you <FIX> {e} | what is the right thing to do <ABOUT> {e} |
            can {e} be <FIXED> and how | how does {e} go away |
            <MACHINE> <SHOWS> {e}, what now | <MACHINE> <SHOWS> {e}, what should <I> do |
            got {e}, what do <I> do | what job is to be done after {e} |
            who can help me with {e}, what do <I> do""",
        "IND_REMEDY": """how to <FIX> {e} | how <I> can <FIX> {e} | what to do <ABOUT> {e} |
            how <I> <FIX> {e} | what <I> <MUST> do <ABOUT> {e} | how {e} is <FIXED> |
            how {e} can be <FIXED> | what <FIXES> {e} | what helps against {e} |
            what <I> <MUST> do <WHEN> {e} <APPEARS> | the way to <FIX> {e} |
            what must be done <ABOUT> {e} | how one <FIX>es {e} |
            what can be done <ABOUT> {e} | what <I> do to <FIX> {e}""",
        "SAY_REMEDY": """to <FIX> {e}, | to <FIX> {e} you have to | {e} is <FIXED> if you |
            the <NOUN_REMEDY> for {e} is to | <WHEN> {e} <APPEARS>, |
            <WHEN> {e} <APPEARS>, you <MUST> | if you see {e}, | after {e}, | against {e}, |
            in order to <FIX> {e}, | you <FIX> {e} if you | in case of {e}, |
            the best way to <FIX> {e} is to | to <FIX> {e} <I> <MUST> |
            what helps against {e} is to | whoever wants to <FIX> {e} <MUST> |
            for {e} you <MUST> | {e} goes away if you | {e} will disappear once you |
            to get rid of {e}, simply | the advice for {e} is: |
            <MACHINE> <SHOWS> {e}, so I <MUST> | {e} can be <FIXED> if you |
            the manual says about {e}: | with {e}, please""",
        "CMD_REMEDY": """<FIX> {e} | help me <FIX> {e} | help <ME> with {e} |
            show <ME> how to <FIX> {e} | help, {e} | I have {e}, help |
            I need help with {e} | I need to <FIX> {e} | I want to <FIX> {e} |
            I <MUST> <FIX> {e} | guide <ME> through {e} | we have to <FIX> {e} |
            please help with {e} | I'm stuck with {e} | trying to <FIX> {e} |
            I cannot <FIX> {e} | {e} again, what now | {e}, what to do | {e} won't go away""",
        # part
        "PARTWORD": """part | spare part | replacement part | component | spare | item |
            piece | replacement | thing | element | article | unit""",
        "NOUN_PART": """spare part | part | replacement part | part number | component |
            spare | replacement | item | order number | required part | needed part |
            spare part number | part no. | repair part | article number | stock number |
            replacement component | necessary part | number of the part""",
        "WH_PART": """which <PARTWORD> do <I> <NEED> for {e} |
            what <PARTWORD> do <I> <NEED> for {e} | which <PARTWORD> is <NEEDED> for {e} |
            what <PARTWORD> <FIXES> {e} | what do <I> <NEEDORDER> for {e} |
            which <PARTWORD> <MUST> <I> <NEED> for {e} |
            what <PARTWORD> is <NEEDED> <ABOUT> {e} | which <PARTWORD> <FIXES> {e} |
            which <PARTWORD> goes with {e} | which <PARTWORD> belongs to {e} |
            which <PARTWORD> should <I> <NEED> <ABOUT> {e} |
            what should <I> <NEEDORDER> for {e} |
            what do <I> have to <NEEDORDER> to <FIX> {e} |
            which <PARTWORD> has to be replaced for {e} |
            which <PARTWORD> do <I> have to <NEED> to <FIX> {e} |
            what <PARTWORD> must be bought for {e} | which number do <I> order for {e} |
            which <PARTWORD> is responsible for {e} | which <PARTWORD> is it for {e} |
            which <PARTWORD> <MUST> be changed <WHEN> {e} <COMES> |
            what is the <PARTWORD> for {e} |
            which <PARTWORD> would <I> <NEED> if I had {e} |
            what <PARTWORD> number is used for {e} |
            <MACHINE> <SHOWS> {e}, which <PARTWORD> do <I> <NEED> |
            is there a <PARTWORD> for {e} | what do <I> have to get from the store for {e} |
            which <PARTWORD> helps against {e} | what <PARTWORD> should be in stock for {e}""",
        "NEEDORDER": "order | buy | replace | get | purchase | request | exchange | swap | procure",
        "IND_PART": """which <PARTWORD> <I> <NEED> for {e} |
            what <PARTWORD> <I> <NEED> for {e} | which <PARTWORD> is <NEEDED> for {e} |
            which <PARTWORD> <FIXES> {e} | what <I> <MUST> <NEEDORDER> for {e} |
            which <PARTWORD> to <NEED> for {e} | what to <NEEDORDER> for {e} |
            which <PARTWORD> belongs to {e} |
            which <PARTWORD> <I> <MUST> <NEED> <ABOUT> {e} |
            the <PARTWORD> that <FIXES> {e} | which <PARTWORD> goes with {e}""",
        "SAY_PART": """the <NOUN_PART> for {e} is | for {e} you need <PARTWORD> |
            for {e}, order part | {e} needs part | {e} calls for part |
            the <PARTWORD> <NEEDED> for {e} is | to <FIX> {e}, <NEEDORDER> part |
            {e} requires part | to <FIX> {e} you <MUST> <NEED> part |
            <WHEN> {e} <COMES>, <NEEDORDER> part | {e} is <FIXED> with part |
            the <PARTWORD> that <FIXES> {e} is | the <PARTWORD> to <NEED> for {e} is |
            repair of {e} needs part | the <PARTWORD> that belongs to {e} has the number |
            <I> <NEED> for {e} the part | against {e} the store hands out part |
            the order for {e} goes to part number""",
        "CMD_PART": """order the <PARTWORD> for {e} | find the <PARTWORD> for {e} |
            I need the <PARTWORD> for {e} | I need the <NOUN_PART> to <FIX> {e} |
            I want to <NEEDORDER> the <PARTWORD> for {e} |
            I have to <NEEDORDER> the <PARTWORD> for {e} | <PARTWORD> to <FIX> {e} |
            <PARTWORD> needed for {e} | <NEEDORDER> what for {e} |
            looking for the <PARTWORD> for {e}""",
        # place
        "SIT": """mounted | located | installed | found | placed | fitted | fixed |
            situated | built in | positioned | attached | hidden | put | seated |
            screwed on | kept""",
        "SITS": """sits | is | goes | belongs | is located | is mounted | is installed |
            lies | fits | can be found | hides""",
        "NOUN_PLACE": """location | place | position | spot | mounting place |
            installation place | site | seat | mounting position | fitting position |
            whereabouts | mounting point | placement | exact location""",
        "WH_PLACE": """where is {e} | where do <I> find {e} | where is {e} <SIT> |
            where can <I> find {e} | where does {e} go | where does {e} sit |
            where does {e} belong | where exactly is {e} |
            in which <NOUN_PLACE> is {e} <SIT> | where on <MACHINE> is {e} |
            where <MUST> {e} be <SIT> | where should <I> put {e} | where do <I> put {e} |
            where's {e} | how do <I> find {e} | where in <MACHINE> is {e} <SIT> |
            where <MUST> <I> look for {e} | at what <NOUN_PLACE> is {e} |
            where can {e} be found | what is {e} next to | where does {e} fit |
            where has {e} been <SIT> | whereabouts is {e} | where would <I> find {e} |
            where do <I> look for {e} | where did they put {e} | where do <I> install {e} |
            where are <I> to <PUT> {e} | where is the place for {e} |
            on which side is {e} <SIT> | where do <I> have to <PUT> {e} |
            how do <I> get to {e} | where is {e} hiding""",
        "PUT": "put | mount | install | fit | place | attach | insert | fix | screw",
        "IND_PLACE": """where {e} is | where {e} <SITS> | where to find {e} |
            where <I> can find {e} | where {e} is <SIT> | where <I> find {e} |
            where <I> <MUST> <PUT> {e} | where to <PUT> {e} | where to look for {e} |
            how to find {e} | where {e} goes | where {e} belongs | where {e} can be found""",
        "SAY_PLACE": """{e} is <SIT> | {e} <SITS> | you will find {e} |
            the <NOUN_PLACE> of {e} is | {e} is | <I> can find {e} | <I> find {e} |
            on <MACHINE>, {e} is | {e} goes | {e} can be found | look for {e} |
            if you want {e}, look | {e} has its <NOUN_PLACE> | <PUT> {e} |
            {e} must be <SIT> | the mechanic finds {e} | {e} has been <SIT> |
            the right <NOUN_PLACE> for {e} is""",
        "CMD_PLACE": """find {e} | locate {e} | show <ME> {e} | I can't find {e} |
            I am looking for {e} | looking for {e} | I cannot find {e}, where is it |
            I want to <PUT> {e} | search {e} | I need to find {e} | where {e} |
            help me find {e} | point <ME> to {e}""",
        # life
        "NOUN_LIFE": """lifetime | service life | life | lifespan | life expectancy |
            durability | replacement interval | working life | running time |
            operating hours | maintenance interval | life span | expected life |
            change interval | useful life | longevity | service interval | hours |
            endurance | wear limit""",
        "REPLACED": """replaced | changed | renewed | exchanged | swapped | swapped out |
            substituted | thrown away""",
        "REPLACE": """replace | change | renew | exchange | swap | swap out | throw away |
            substitute""",
        "LAST": """last | hold | run | live | work | hold out | survive | stay good |
            keep working | endure | function | remain usable | keep going | do its job""",
        "WH_LIFE": """how long does {e} <LAST> | how often should <I> <REPLACE> {e} |
            when must {e} be <REPLACED> | how many hours does {e} <LAST> |
            what is the <NOUN_LIFE> of {e} | how long will {e} <LAST> |
            after how many hours is {e} <REPLACED> | when do <I> have to <REPLACE> {e} |
            how long can {e} <LAST> | when should {e} be <REPLACED> |
            how often is {e} <REPLACED> | how many hours can {e} <LAST> |
            when is {e} due for replacement | how durable is {e} |
            how long is {e} good for | how long until {e} is worn out |
            how long before {e} wears out | when does {e} wear out |
            after what time should <I> <REPLACE> {e} | how long may {e} be used |
            how long can <I> use {e} | how frequently must {e} be <REPLACED> |
            for how long does {e} <LAST> | after how long do <I> <REPLACE> {e} |
            at what age is {e} <REPLACED> | how many hours are there in {e} |
            when will {e} fail | when is {e} worn | how much life does {e} have |
            when do <I> need a new {e} | how soon must {e} be <REPLACED> |
            how long has {e} got | what time does {e} <LAST> | until when is {e} good |
            in what interval is {e} <REPLACED> | how old does {e} get""",
        "IND_LIFE": """how long {e} <LAST>s | how many hours {e} <LAST>s |
            when to <REPLACE> {e} | how often to <REPLACE> {e} |
            when {e} must be <REPLACED> | how long {e} will <LAST> |
            how often {e} is <REPLACED> | how long {e} can <LAST> |
            after how many hours {e} is <REPLACED> | how often <I> <MUST> <REPLACE> {e} |
            when <I> <MUST> <REPLACE> {e} | how durable {e} is | how long {e} is good for |
            when {e} wears out""",
        "SAY_LIFE": """{e} <LAST>s for | {e} is <REPLACED> after |
            the <NOUN_LIFE> of {e} is | <REPLACE> {e} every | {e} is good for |
            {e} has a <NOUN_LIFE> of | {e} <LAST>s | {e} <MUST> be <REPLACED> after |
            <REPLACE> {e} after | {e} can <LAST> for | you <MUST> <REPLACE> {e} every |
            {e} wears out after | {e} will <LAST> | {e} is worn out after | {e} works for |
            {e} has to be <REPLACED> every | expect {e} to <LAST> | with care, {e} <LAST>s |
            {e} fails after | {e} is due after""",
        "CMD_LIFE": """<REPLACE> {e} when | {e} how many hours | {e} how long |
            {e} replace when | {e} how often | {e} hours | I want to know the hours of {e} |
            hours until {e} is <REPLACED> | time until {e} wears out""",
        # maker
        "MAKES": """makes | manufactures | produces | supplies | builds | sells | delivers |
            fabricates | provides | offers | ships""",
        "MADE": """made | manufactured | produced | supplied | built | sold | delivered |
            fabricated | provided | constructed""",
        "FIRM": """company | firm | manufacturer | factory | brand | supplier | business |
            maker | works | vendor | producer""",
        "NOUN_MAKER": """maker | manufacturer | producer | supplier | brand | company |
            firm | vendor | factory | make | manufacturing company | seller | builder |
            provider | brand name | origin | distributor | source | fabricator""",
        "WH_MAKER": """who makes {e} | who is the <NOUN_MAKER> of {e} |
            which <FIRM> <MAKES> {e} | who <MAKES> {e} | who made {e} |
            what <FIRM> <MAKES> {e} | who is {e} <MADE> by | by whom is {e} <MADE> |
            where does {e} come from | which <FIRM> is behind {e} |
            what <FIRM> is {e} from | where can <I> buy {e} | who do <I> get {e} from |
            which <FIRM> does {e} come from | where do <I> order {e} | who built {e} |
            whose product is {e} | from whom can <I> <NEEDORDER> {e} |
            from which <FIRM> is {e} | what is the <NOUN_MAKER> of {e} |
            where is {e} <MADE> | what name is on {e} |
            who should <I> call to <NEEDORDER> {e} | who is behind {e} |
            which <FIRM> has <MADE> {e} | by which <FIRM> is {e} <MADE> |
            what brand is {e} | who brought out {e} | who is responsible for making {e} |
            where do <I> get {e} | from where do <I> <NEEDORDER> {e} |
            which <FIRM> should <I> write to for {e} | where was {e} manufactured |
            who invented {e} | what is the name of the <FIRM> that <MAKES> {e} |
            which <FIRM>'s part is {e}""",
        "IND_MAKER": """who <MAKES> {e} | who made {e} | which <FIRM> <MAKES> {e} |
            by whom {e} is <MADE> | where {e} comes from | where to <NEEDORDER> {e} |
            where <I> can <NEEDORDER> {e} | who <I> get {e} from | what <FIRM> <MAKES> {e} |
            what brand {e} is | which <FIRM> {e} is from | who the <NOUN_MAKER> of {e} is |
            the <FIRM> that <MAKES> {e}""",
        "SAY_MAKER": """{e} is <MADE> by | {e} was <MADE> by | the <NOUN_MAKER> of {e} is |
            {e} comes from | the <FIRM> that <MAKES> {e} is | <I> <NEEDORDER> {e} from |
            {e} is a product of | {e} is from | {e} <MADE> by |
            the <FIRM> behind {e} is called | the name on {e} is |
            you can <NEEDORDER> {e} from | {e} bears the name of | {e} has been <MADE> by |
            the parts list names as <NOUN_MAKER> of {e} the firm |
            {e} leaves the factory of | {e} carries the label of""",
        "CMD_MAKER": """name the <FIRM> behind {e} | <NEEDORDER> {e} from |
            I want to <NEEDORDER> {e} | {e} <MADE> by | {e} who makes it |
            <FIRM> that <MAKES> {e} | I need to <NEEDORDER> {e} |
            contact the <NOUN_MAKER> of {e} | {e} from which <FIRM>""",
    }.items()
}
