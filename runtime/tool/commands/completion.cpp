#include <cstdio>
#include <string>

#include "base/format.hpp"
#include "tool/command.hpp"

namespace spc::tool {
namespace {

/// Long options of a command, `=` behind those that take a value.
std::string options_of(const Command& command) {
  std::string list = "--help";
  for (const OptionRow& row : command.options) {
    const std::string_view names = row.names;
    list += formatted(" {}{}", names.substr(names.rfind("--")), row.argument != nullptr ? "=" : "");
  }
  return list;
}

std::string bash_script() {
  std::string names;
  std::string cases;
  for (const Command& command : command_table()) {
    names += (names.empty() ? "" : " ") + std::string(command.name);
    cases += formatted("        {}) options=\"{}\" ;;\n", command.name, options_of(command));
  }
  return R"sh(# bash completion for scontainer: source <(scontainer completion bash)
_scontainer() {
    local current=${COMP_WORDS[COMP_CWORD]} names=")sh" +
         names + R"sh(" options=
    if [[ $COMP_CWORD -eq 1 ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$names --help --version" -- "$current")
        return
    fi
    case ${COMP_WORDS[1]} in
)sh" + cases +
         R"sh(    esac
    if [[ $current == -* ]]; then
        compopt -o nospace 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
        return
    fi
    case ${COMP_WORDS[1]} in
        inspect | rm | run | shell | export)
            mapfile -t COMPREPLY < <(compgen -W "$(scontainer images 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$current")
            declare -F __ltrim_colon_completions >/dev/null && __ltrim_colon_completions "$current"
            ;;
        cdi)
            if [[ ${COMP_WORDS[2]} == show && $COMP_CWORD -gt 2 ]]; then
                mapfile -t COMPREPLY < <(compgen -W "$(scontainer cdi list 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$current")
            else
                mapfile -t COMPREPLY < <(compgen -W "list show generate" -- "$current")
            fi
            ;;
        help) mapfile -t COMPREPLY < <(compgen -W "$names" -- "$current") ;;
        completion) mapfile -t COMPREPLY < <(compgen -W bash -- "$current") ;;
        *) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    esac
}
complete -F _scontainer scontainer
)sh";
}

}  // namespace

Result<int> run_completion(const Arguments& arguments) {
  if (arguments.words[0] != "bash") {
    return Error(ErrorKind::invalid, "no completion for " + in_quotes(arguments.words[0])).hint("only bash is supported");
  }
  std::fputs(bash_script().c_str(), stdout);
  return 0;
}

}  // namespace spc::tool
