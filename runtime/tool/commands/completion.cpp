#include <algorithm>
#include <cstdio>
#include <string>

#include "base/format.hpp"
#include "tool/command.hpp"
#include "tool/commands/completion_text.hpp"
#include "tool/commands/slurm_completion.hpp"

namespace spc::tool {

std::string in_single_quotes(std::string_view text, std::string_view for_quote) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string(for_quote) : std::string(1, c);
  return quoted + "'";
}

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
        exec | stop)
            mapfile -t COMPREPLY < <(compgen -W "$(scontainer containers 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$current")
            ;;
        cdi)
            if [[ ${COMP_WORDS[2]} == show && $COMP_CWORD -gt 2 ]]; then
                mapfile -t COMPREPLY < <(compgen -W "$(scontainer cdi list 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$current")
            else
                mapfile -t COMPREPLY < <(compgen -W "list show generate" -- "$current")
            fi
            ;;
        help) mapfile -t COMPREPLY < <(compgen -W "$names" -- "$current") ;;
        completion) mapfile -t COMPREPLY < <(compgen -W "bash fish zsh" -- "$current") ;;
        *) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    esac
}
complete -F _scontainer scontainer
)sh" + slurm_completion_for_bash();
}

bool takes_image(std::string_view command) {
  return command == "inspect" || command == "rm" || command == "run" || command == "shell" ||
         command == "export";
}

bool takes_container(std::string_view command) { return command == "exec" || command == "stop"; }

/// `-y,--yes`: each with what comes before its name.
template <typename Add>
void each_name(const OptionRow& row, const Add& add) {
  std::string_view names = row.names;
  for (std::size_t at = 0; at <= names.size();) {
    const std::size_t end = std::min(names.find(',', at), names.size());
    add(names.substr(at, end - at));
    at = end + 1;
  }
}

std::string fish_script() {
  std::string text =
      "# fish completion for scontainer: scontainer completion fish | source\ncomplete -c "
      "scontainer -f\n";
  for (const Command& command : command_table()) {
    text += formatted("complete -c scontainer -n __fish_use_subcommand -a {} -d {}\n", command.name,
                      in_single_quotes(command.summary, "\\'"));
    const std::string here =
        formatted("complete -c scontainer -n '__fish_seen_subcommand_from {}'", command.name);
    for (const OptionRow& row : command.options) {
      text += here;
      each_name(row, [&](std::string_view name) {
        text += name.starts_with("--") ? formatted(" -l {}", name.substr(2))
                                       : formatted(" -s {}", name.substr(1));
      });
      text += formatted("{} -d {}\n", row.argument != nullptr ? " -r" : "",
                        in_single_quotes(row.help, "\\'"));
    }
    if (takes_image(command.name))
      text += formatted("{} -a \"({})\"\n", here,
                        "scontainer images 2>/dev/null | awk 'NR > 1 { print \\$1 }'");
    if (takes_container(command.name))
      text += formatted("{} -a \"({})\"\n", here,
                        "scontainer containers 2>/dev/null | awk 'NR > 1 { print \\$1 }'");
  }
  return text +
         "complete -c scontainer -n '__fish_seen_subcommand_from import export doctor' -F\n"
         "complete -c scontainer -n '__fish_seen_subcommand_from completion' -a 'bash fish zsh'\n" +
         slurm_completion_for_fish();
}

/// What stands in brackets and behind colons has a meaning of its own.
std::string for_zsh(std::string_view text) {
  std::string escaped;
  for (const char c : text)
    escaped += (c == '[' || c == ']' || c == ':' || c == '\\' ? "\\" : "") +
               (c == '\'' ? std::string("'\\''") : std::string(1, c));
  return escaped;
}

std::string zsh_script() {
  std::string names;
  std::string cases;
  for (const Command& command : command_table()) {
    names += formatted("        '{}:{}'\n", command.name, for_zsh(command.summary));
    cases += formatted("        {}) _arguments -S", command.name);
    for (const OptionRow& row : command.options) {
      each_name(row, [&](std::string_view name) {
        const char* argument = row.argument == nullptr ? "" : name.starts_with("--") ? "=" : "+";
        cases += formatted(" \\\n            '{}{}[{}]{}'", name, argument, for_zsh(row.help),
                           row.argument == nullptr ? "" : ":value:_files");
      });
    }
    const char* words = takes_image(command.name)       ? "_scontainer_images"
                        : takes_container(command.name) ? "_scontainer_containers"
                                                        : "_files";
    cases += formatted(" \\\n            '*:word:{}' ;;\n", words);
  }
  return formatted(R"sh(#compdef scontainer srun sbatch salloc
# zsh completion for scontainer: source <(scontainer completion zsh), or as _scontainer in a directory of $fpath
_scontainer_images() {{ compadd -- ${{(f)"$({})"}} }}
_scontainer_containers() {{ compadd -- ${{(f)"$({})"}} }}
_scontainer() {{
    local -a names=(
{}    )
    if (( CURRENT == 2 )); then
        _describe command names
        return
    fi
    local command=${{words[2]}}
    shift words
    (( CURRENT-- ))
    case $command in
{}        *) _files ;;
    esac
}}
compdef _scontainer scontainer
)sh",
                   kListImages, kListContainers, names, cases) +
         slurm_completion_for_zsh();
}

}  // namespace

Result<int> run_completion(const Arguments& arguments) {
  const std::string& shell = arguments.words[0];
  const auto script = shell == "bash"   ? bash_script
                      : shell == "fish" ? fish_script
                      : shell == "zsh"  ? zsh_script
                                        : nullptr;
  if (script == nullptr)
    return Error(ErrorKind::invalid, "no completion for " + in_quotes(shell))
        .hint("bash, fish or zsh");
  std::fputs(script().c_str(), stdout);
  return 0;
}

}  // namespace spc::tool
