"""Options that several subcommands share: one name, one meaning, one help text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from knn_logits.errors import ConfigError
from knn_logits.settings.config import MOST_SEED, MOST_THREADS, KNNConfig, Preset

if TYPE_CHECKING:
    from knn_logits.mixture.gates.stored import StoredGate

STORE_HELP = "Folder of the datastore, or org/name[@revision] on the Hub."

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Hub id or folder of the model.")]
Store = Annotated[str, typer.Argument(metavar="STORE", help=STORE_HELP)]
Corpus = Annotated[
    list[str],
    typer.Argument(
        metavar="CORPUS...",
        help="Plain text, source code, PDF, HTML, .docx, .pptx, .epub, .ipynb, .eml, .mbox, .rtf; "
        "JSON lines and parquet (fields text, id, title, uri); gzip of these, folders of these, or "
        "hf:DATASET[:CONFIG[:SPLIT]]. An encoder-decoder model takes rows with source and target, "
        "or two parallel text files, SOURCES::TARGETS.",
    ),
]
Stores = Annotated[
    list[str],
    typer.Argument(metavar="STORE...", help=f"{STORE_HELP} Several are searched as one."),
]
SourceField = Annotated[
    str, typer.Option("--source-field", help="Field of a row's source, such as translation.en.")
]
TargetField = Annotated[str, typer.Option("--target-field", help="Field of a row's target.")]
TextField = Annotated[
    str, typer.Option("--text-field", help="Field of a row's text, such as body or article.text.")
]
IdField = Annotated[str, typer.Option("--id-field", help="Field of a row's id.")]
TitleField = Annotated[str, typer.Option("--title-field", help="Field of a row's title.")]
Encoding = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        help="Encoding of text files, HTML and rows, such as latin-1; by default it is recognised.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="W,W,...",
        help="Share of each datastore in the vote, such as 0.7,0.3; by default neighbors are "
        "merged by distance.",
    ),
]
NativeIndex = Annotated[
    bool,
    typer.Option(
        "--native-index",
        help="Allow FAISS's own format for an index that cannot be stored as plain arrays. That "
        "format cannot be checked.",
    ),
]

Revision = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit on the Hub.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be done, with files and sizes.")
]

PresetOption = Annotated[
    Preset | None,
    typer.Option(
        "--preset",
        help="Where settings come from that are not given: the datastore's for writing or for "
        "scoring, or the papers' kNN-LM. [default: what the command does]",
    ),
]
K = Annotated[int | None, typer.Option("--k", help="Number of neighbors of each query.")]
Lmbda = Annotated[
    float | None, typer.Option("--lmbda", help="Weight of the neighbors, from 0 to 1.")
]
Gate = Annotated[
    str | None,
    typer.Option(
        "--gate", metavar="FILE", help="File of a gate, which chooses lmbda at each token."
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", help="Temperature of the softmax over the neighbors, above 0."),
]
Nprobe = Annotated[
    int | None, typer.Option("--nprobe", help="Inverted lists visited for each query.")
]
Refine = Annotated[bool, typer.Option("--refine", help="Recompute distances from the stored keys.")]
Retomaton = Annotated[
    bool,
    typer.Option(
        "--retomaton", help="Follow pointers through the corpus; search when too few are left."
    ),
]
RetomatonOrNot = Annotated[
    bool | None,
    typer.Option(
        "--retomaton/--no-retomaton",
        help="Follow pointers through the corpus; search when too few are left. The default is the "
        "datastore's setting.",
    ),
]
MinKnns = Annotated[
    int | None, typer.Option("--min-knns", help="Search when fewer pointers than this are left.")
]
MaxKnns = Annotated[
    int | None,
    typer.Option("--max-knns", help="The most pointers and cluster members that may vote."),
]
PointerWeight = Annotated[
    float | None,
    typer.Option(
        "--pointer-weight",
        help="How many times as much an entry counts if a pointer led to it; the paper's is 1.",
    ),
]
SuffixWeight = Annotated[
    float | None,
    typer.Option(
        "--suffix-weight",
        help="How many times as much an entry counts for each token before it that is also before "
        "the query, up to 8; the papers' is 1.",
    ),
]
PointerDistances = Annotated[
    str | None,
    typer.Option(
        "--pointer-distances", help="Compare pointers by the stored keys (keys) or the index."
    ),
]
InfiniGram = Annotated[
    str | None,
    typer.Option(
        "--infini-gram",
        metavar="SHARE|auto",
        help="Let what follows the end of the text in the corpus, word for word, have this share, "
        "or one by its length.",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="DOCUMENT",
        help="Leave the document with this id or title out, as if it had never been added; may be "
        "repeated.",
    ),
]
Key = Annotated[
    str,
    typer.Option(
        "--key",
        help="Place of the key: ffn_input, layer_output, or a module's path with :input or "
        ":output.",
    ),
]
Metric = Annotated[
    str | None, typer.Option("--metric", help="How keys are compared: l2, ip or cosine.")
]
Index = Annotated[
    str,
    typer.Option(
        "--index",
        metavar="FACTORY|exact|auto",
        help="Kind of index; FACTORY is a FAISS factory string such as IVF1024,SQ8.",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="SIZE",
        help="The most that the index may take, such as 4GB: the kind that finds most is chosen.",
    ),
]
TargetRecall = Annotated[
    float | None,
    typer.Option(
        "--target-recall",
        help="Take the smallest kind of index that finds this share of the true neighbors.",
    ),
]
Window = Annotated[
    int | None, typer.Option("--window", help="Number of tokens that the model sees at once.")
]
Stride = Annotated[
    int | None, typer.Option("--stride", help="Number of tokens by which the window moves on.")
]
Concatenate = Annotated[
    bool | None,
    typer.Option(
        "--concatenate/--no-concatenate",
        help="Join the documents into one stream. The default is what the datastore did.",
    ),
]
BatchTokens = Annotated[
    int | None, typer.Option("--batch-tokens", help="Number of tokens of one forward pass.")
]
AllowOverlap = Annotated[
    bool,
    typer.Option(
        "--allow-overlap", help="Do not check whether the datastore already holds the texts."
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at a document that cannot be read.")]
Device = Annotated[
    str, typer.Option("--device", help="Device of the model: cpu, cuda, cuda:1, mps or auto.")
]
Dtype = Annotated[
    str, typer.Option("--dtype", help="Precision of the model: auto, float32, bfloat16, float16.")
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, max=MOST_THREADS, help="Number of CPU threads; all by default."
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=MOST_SEED, help="Seed of every random choice.")
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Use the machines of a Ray cluster: auto, HOST:PORT, or local for this machine alone.",
    ),
]
Shards = Annotated[
    int | None,
    typer.Option(
        "--shards",
        min=1,
        help="Number of parts of the index, with --ray; one for each machine.",
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        min=1,
        help="Number of machines that hold each part of the index, with --ray. [default: 1]",
    ),
]
Partial = Annotated[
    bool,
    typer.Option(
        "--partial", help="With --ray, go on without parts of the index that do not answer."
    ),
]
Save = Annotated[
    str | None, typer.Option("--save", metavar="FILE", help="Write the whole trace there, as JSON.")
]
Html = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Write the coloured words there, as a web page."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")
]


def weight_of(lmbda: float | None, gate: str | None) -> float | StoredGate | None:
    """Returns the weight that --lmbda or --gate gives, or None if neither is given.

    Raises:
        ConfigError: when both are given, or the number is out of its range.
        DamagedError: when the file does not hold a gate.
    """
    if gate is None:
        return KNNConfig(lmbda=lmbda).lmbda if lmbda is not None else None
    if lmbda is not None:
        raise ConfigError("--gate already chooses lmbda: leave out --lmbda or --gate")
    from knn_logits.mixture.gates.stored import load_gate

    return load_gate(gate)


def parse_infini_gram(text: str | None) -> float | Literal["auto"] | None:
    """The share that --infini-gram gives.

    Raises:
        ConfigError: when it is neither a number from 0 to 1 nor "auto".
    """
    if text is None or text == "auto":
        return text  # type: ignore[return-value]
    try:
        share = float(text)
    except ValueError as error:
        raise ConfigError(
            f"--infini-gram takes a number from 0 to 1 or auto, not {text!r}"
        ) from error
    KNNConfig(infini_gram=share)
    return share


def parse_weights(text: str | None) -> list[float] | None:
    """Returns the shares that --weights gives.

    Raises:
        ConfigError: when they are not numbers.
    """
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--weights takes numbers like 0.7,0.3, not {text!r}") from error
