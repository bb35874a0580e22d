"""`flotilla completion SHELL`: a script that makes bash or zsh complete the command line.

What lives here: the two scripts, made from the parser, so that no command or option is missing.
What must not: the commands (cli.py).
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from typing import Final

DIRECTORIES: Final = frozenset({"--state", "--record"})  # options that take a directory
# Commands that take a topic of mine, and those that take any.
MINE: Final = ("unsub", "get", "seek")
ANY: Final = ("sub", "put", "work", "read")

_BASH: Final = """\
# bash completion of flotilla:  source <(flotilla completion bash)
_flotilla_topics() {
    # The first column of the table, without its head; columns are two spaces apart.
    "${words[0]}" "${given[@]}" --deadline 2 topics "$@" 2>/dev/null | sed -e 1d -e 's/  .*//'
}

_flotilla() {
    # Bash parts words at : and =, and puts in place of the last part alone what is offered.
    local words=("${COMP_WORDS[0]}") last=0 part joins= index
    for part in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ $joins || $part =~ ^[:=]+$ ]]; then words[last]+=$part; else words[++last]=$part; fi
        if [[ $part =~ ^[:=]+$ ]]; then joins=1; else joins=; fi
    done
    COMPREPLY=()
    _flotilla_offer
    part=${words[last]}
    [[ $joins ]] || part=${part%"${COMP_WORDS[COMP_CWORD]}"}
    for index in "${!COMPREPLY[@]}"; do COMPREPLY[index]=${COMPREPLY[index]#"$part"}; done
}

_flotilla_offer() {
    local current=${words[last]} command= place=0 word index given=() values
    for ((index = 1; index < last; index++)); do
        word=${words[index]}
        case $word in
            @VALUED@)
                case $word in -e | --endpoints | --state | --key)
                    given+=("$word" "${words[index + 1]}") ;;
                esac
                ((index++)) ;;
            --endpoints=* | --state=* | --key=*) given+=("$word") ;;
            -*) ;;
            *) if [[ -z $command ]]; then command=$word; else ((place++)); fi ;;
        esac
    done
    if ((index > last)); then  # the value of an option
        case ${words[last - 1]} in
            @DIRECTORIES@) compopt -o filenames 2>/dev/null
                mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
        esac
        return
    fi
    case $command in
        "") values="@COMMANDS@"; [[ $current == -* ]] && values="@OPTIONS@" ;;
@CASES@
        *) return ;;
    esac
    if [[ $values ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
        return
    fi
    local topic
    while IFS= read -r topic; do
        [[ $topic == "$current"* ]] && COMPREPLY+=("$(printf %q "$topic")")
    done < <(_flotilla_topics "${topics[@]}")
}

complete -F _flotilla flotilla
"""

_ZSH: Final = """\
#compdef flotilla
# zsh completion of flotilla:  source <(flotilla completion zsh), or as a file _flotilla in fpath
_flotilla_topics() {
    local -a topics
    topics=(${(f)"$(flotilla $given --deadline 2 topics $@ 2>/dev/null | sed -e 1d -e 's/  .*//')"})
    compadd -a topics
}

_flotilla() {
    local curcontext=$curcontext state line index
    local -a commands given
    # Which cluster is asked, and as whom: _arguments leaves no more of it than the command's words.
    for ((index = 2; index < CURRENT; index++)); do
        case $words[index] in
            -e | --endpoints | --state | --key)
                given+=($words[index] ${(Q)words[index + 1]}) ;;
            --endpoints=* | --state=* | --key=*) given+=(${(Q)words[index]}) ;;
        esac
    done
    commands=(
@COMMANDS@
    )
    _arguments -C -A '-*' @OPTIONS@ \\
        '1:command:->command' '*::argument:->argument'
    case $state in
        command) _describe command commands ;;
        argument)
            case $line[1] in
@CASES@
            esac ;;
    esac
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _flotilla "$@"
else
    compdef _flotilla flotilla
fi
"""


def bash(parser: argparse.ArgumentParser) -> str:
    """Return the script for bash 4 and newer."""
    commands = _commands(parser)
    everywhere = _options(parser)
    actions = [*everywhere, *(one for each in commands.values() for one in _options(each))]
    valued = sorted({name for one in actions if one.nargs != 0 for name in one.option_strings})
    cases = []
    for name, command in commands.items():
        options = " ".join(_long(one) for one in _options(command))
        cases.append(f'        {name}) values="{options}"')
        if name in (*MINE, *ANY):
            everybody = "--all" if name in ANY else ""
            cases.append(f"            [[ $current != -* ]] && values= topics=({everybody})")
            cases.append("            ((place)) && [[ $current != -* ]] && return")
        choices = _choices(command)
        if choices:
            cases.append(f'            [[ $current != -* ]] && values="{choices}"')
        cases.append("            ;;")
    filled = {
        "VALUED": " | ".join(valued),
        "DIRECTORIES": " | ".join(sorted(DIRECTORIES)),
        "COMMANDS": " ".join(commands),
        "OPTIONS": " ".join(_long(one) for one in everywhere),
        "CASES": "\n".join(cases),
    }
    return _filled(_BASH, filled)


def zsh(parser: argparse.ArgumentParser) -> str:
    """Return the script for zsh."""
    commands = _commands(parser)
    cases = []
    for name, command in commands.items():
        words = [word for one in _options(command) for word in _zsh_options(one)]
        if name in (*MINE, *ANY):
            everybody = " --all" if name in ANY else ""
            words.append(f"'1:topic:{{_flotilla_topics{everybody}}}'")
        choices = _choices(command)
        if choices:
            words.append(f"'1:shell:({choices})'")
        cases.append(f"                {name}) _arguments {' '.join(words)} ;;")
    filled = {
        "COMMANDS": "\n".join(
            f"        {shlex.quote(f'{name}:{_text(command.description)}')}"
            for name, command in commands.items()
        ),
        "OPTIONS": " ".join(word for one in _options(parser) for word in _zsh_options(one)),
        "CASES": "\n".join(cases),
    }
    return _filled(_ZSH, filled)


SHELLS: Final[Mapping[str, Callable[[argparse.ArgumentParser], str]]] = {"bash": bash, "zsh": zsh}


def _filled(script: str, parts: Mapping[str, str]) -> str:
    for name, part in parts.items():
        script = script.replace(f"@{name}@", part)
    return script


def _commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    [found] = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    commands: Mapping[str, argparse.ArgumentParser] = found.choices
    return commands


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings]


def _choices(parser: argparse.ArgumentParser) -> str:
    found = [one.choices for one in parser._actions if not one.option_strings and one.choices]
    return " ".join(map(str, found[0])) if found else ""


def _long(action: argparse.Action) -> str:
    return max(action.option_strings, key=len)


def _zsh_options(action: argparse.Action) -> list[str]:
    """Return an option by each of its names, which exclude each other; a long one takes =VALUE."""
    names, takes_value, value = action.option_strings, action.nargs != 0, ""
    if takes_value:
        value = f":{_text(action.metavar or action.dest)}:"
        value += "_files -/" if _long(action) in DIRECTORIES else " "
    excluded = f"({' '.join(names)})" if len(names) > 1 else ""
    marked = [f"{name}=" if takes_value and name.startswith("--") else name for name in names]
    return [shlex.quote(f"{excluded}{name}[{_text(action.help)}]{value}") for name in marked]


def _text(text: object) -> str:
    """Return a description without what zsh reads as the end of one."""
    return str(text or "").translate(str.maketrans(":[]", ",()"))
