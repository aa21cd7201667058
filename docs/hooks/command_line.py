"""The page of the command line, made of the application itself, so that it cannot fall behind."""

import inspect

from knn_logits.cli.app import command as command_line

PAGE = "reference/command-line.md"
_HEAD = """\
# The command line

This page is made from the application itself; `knn-logits COMMAND --help` says the same.

- `MODEL` and `STORE` are a Hub id or a folder. A folder that exists comes first.
  `org/name@revision` names one state of a datastore on the Hub.
- `CORPUS` is described in [Your documents](../guides/documents.md).
- The settings have the same names in every command: `--k`, `--lmbda`, `--temperature`, `--nprobe`,
  `--refine`, `--retomaton`. `--device`, `--dtype`, `--threads` and `--seed` say how a command runs.
- With `--json` the last line of standard output is one JSON object.
- A mistake is one line on standard error that says what to do. The exit status is then 1. Wrong
  usage exits with 2.

| command | what it does |
|---|---|
"""


def on_files(files, config, **_):
    """Called by MkDocs with all files of the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, PAGE, content=page()))
    return files


def page():
    """The page as Markdown."""
    commands = command_line.commands
    rows = [
        f"| [`{name}`](#knn-logits-{name}) | {_cell(_first_line(command))} |"
        for name, command in commands.items()
    ]
    parts = [_HEAD + "\n".join(rows)]
    parts += [_section(name, command) for name, command in commands.items()]
    return "\n\n".join(parts) + "\n"


def _section(name, command):
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    usage = " ".join(["knn-logits", name, *(_place(one) for one in arguments), "[OPTIONS]"])
    parts = [
        f"## knn-logits {name}",
        inspect.cleandoc(command.help or ""),
        f"```text\n{usage}\n```",
    ]
    if arguments:
        rows = [f"| `{_place(one)}` | {_cell(one.help)} |" for one in arguments]
        parts.append("| argument | what it is |\n|---|---|\n" + "\n".join(rows))
    rows = [f"| {_names(one)} | {_cell(one.help)} | {_default(one)} |" for one in options]
    parts.append("| option | what it does | default |\n|---|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _first_line(command):
    return (command.help or "").strip().splitlines()[0]


def _place(argument):
    return argument.metavar or argument.name.upper()


def _names(option):
    names = [f"`{name}`" for name in (*option.opts, *option.secondary_opts)]
    if not option.is_flag:
        names[-1] = f"`{option.opts[-1]} {option.metavar or _kind(option)}`"
    return _cell(", ".join(names))


def _kind(option):
    words = str(option.type_descriptor.annotation)
    return "N" if "int" in words else "NUMBER" if "float" in words else "TEXT"


def _default(option):
    if option.is_flag or option.default in (None, "", [], ()):
        return ""
    return f"`{option.default}`"


def _cell(text):
    return (text or "").replace("|", "\\|").replace("\n", " ")
