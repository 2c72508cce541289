#include "tool/commands/slurm_completion.hpp"

#include <algorithm>
#include <string_view>

#include "base/format.hpp"
#include "launch/request/options.hpp"
#include "tool/commands/completion_text.hpp"

namespace spc::tool {
namespace {

enum class Values { none, words, images, devices, files };

/// What can be offered behind `--container-NAME=`, by what the help says of it.
Values values_of(const ContainerOption& option) {
  const std::string_view argument = option.argument == nullptr ? "" : option.argument;
  const auto is_word = [](char c) { return (c >= 'a' && c <= 'z') || c == '|'; };
  if (argument.empty()) return Values::none;
  if (std::ranges::all_of(argument, is_word)) return Values::words;
  if (argument.starts_with("[USER@]")) return Values::images;
  if (argument.starts_with("VENDOR/")) return Values::devices;
  if (argument == "FILE" || argument == "PATH" || argument.starts_with("SRC")) return Values::files;
  return Values::none;
}

std::string words_of(const ContainerOption& option) {
  std::string words = option.argument;
  std::ranges::replace(words, '|', ' ');
  return words;
}

std::string_view help_of(const ContainerOption& option) {
  constexpr std::string_view kPlugin =
      "[container] ";  // for srun --help, where those of other plugins are
  std::string_view help = option.help;
  if (help.starts_with(kPlugin)) help.remove_prefix(kPlugin.size());
  return help;
}

}  // namespace

std::string slurm_completion_for_bash() {
  std::string names;
  std::string cases;
  for (const ContainerOption& option : container_options()) {
    names += formatted("{}--{}{}", names.empty() ? "" : " ", option.name,
                       option.argument == nullptr ? "" : "=");
    const auto offer = [&](const std::string& words) {
      cases += formatted("        --{}) mapfile -t COMPREPLY < <(compgen {} -- \"$value\") ;;\n",
                         option.name, words);
    };
    switch (values_of(option)) {
      case Values::none: break;
      case Values::words: offer(formatted("-W \"{}\"", words_of(option))); break;
      case Values::images: offer(formatted("-f -W \"$({})\"", kListImages)); break;
      case Values::devices: offer(formatted("-W \"$({})\"", kListDevices)); break;
      case Values::files: offer("-f"); break;
    }
  }
  return R"sh(
# srun, sbatch and salloc: container options beside those that Slurm's own completion knows
declare -gA _scontainer_beside
# Slurm's is one file for all its commands, so it is loaded before ours takes their places.
_scontainer_take_over() {
    local command found
    for command in srun sbatch salloc; do
        { _comp_load $command || _completion_loader $command; } &>/dev/null
    done
    for command in srun sbatch salloc; do
        found=$(complete -p $command 2>/dev/null)
        if [[ $found == *' -F '* && $found != *_scontainer_slurm* ]]; then
            found=${found##* -F }
            _scontainer_beside[$command]=${found%% *}
        fi
        complete -F _scontainer_slurm $command
    done
}
_scontainer_slurm() {
    local command=${1##*/} before=${COMP_LINE:0:COMP_POINT} word option value beside
    [[ ${_scontainer_beside[$command]} ]] || _scontainer_take_over
    word=${before##*[[:space:]]} option=$3
    if [[ $word == --*=* ]]; then
        option=${word%%=*} value=${word#*=}
    else
        value=$word
    fi
    COMPREPLY=()
    case $option in
)sh" + cases +
         R"sh(        *) option= ;;
    esac
    if [[ $option ]]; then
        [[ ! -e ${COMPREPLY[0]} ]] || compopt -o filenames 2>/dev/null
        # The shell takes what stands behind = and : as a word of its own.
        mapfile -t COMPREPLY < <(for word in "${COMPREPLY[@]}"; do echo "${word#"${value%"${value##*[=:]}"}"}"; done)
        return
    fi
    beside=${_scontainer_beside[$command]}
    if [[ $beside ]]; then "$beside" "$@" 2>/dev/null; else mapfile -t COMPREPLY < <(compgen -f -- "$2"); fi
    if [[ $word == -* && $word != *=* ]]; then
        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -W ")sh" +
         names + R"sh(" -- "$word")
        [[ ${COMPREPLY[*]} != *= ]] || compopt -o nospace 2>/dev/null
    fi
}
_scontainer_take_over
)sh";
}

std::string slurm_completion_for_fish() {
  std::string text = "# srun, sbatch and salloc\nfor command in srun sbatch salloc\n";
  for (const ContainerOption& option : container_options()) {
    text += formatted("    complete -c $command -l {} -d {}", option.name,
                      in_single_quotes(help_of(option), "\\'"));
    switch (values_of(option)) {
      case Values::none: text += option.argument == nullptr ? "" : " -x"; break;
      case Values::words: text += formatted(" -x -a '{}'", words_of(option)); break;
      case Values::images:
        text += " -r -a " + in_single_quotes(formatted("({})", kListImages), "\\'");
        break;
      case Values::devices:
        text += " -x -a " + in_single_quotes(formatted("({})", kListDevices), "\\'");
        break;
      case Values::files: text += " -r -F"; break;
    }
    text += '\n';
  }
  return text + "end\n";
}

std::string slurm_completion_for_zsh() {
  std::string with;
  std::string without;
  std::string cases;
  for (const ContainerOption& option : container_options()) {
    (option.argument == nullptr ? without : with) +=
        formatted("        {}\n",
                  in_single_quotes(formatted("--{}:{}", option.name, help_of(option)), "'\\''"));
    const auto offer = [&](const std::string& how) {
      cases += formatted("        --{}=*) compset -P '*='; {}; return ;;\n", option.name, how);
    };
    switch (values_of(option)) {
      case Values::none: break;
      case Values::words: offer("compadd -- " + words_of(option)); break;
      case Values::images: offer("_scontainer_images; _files"); break;
      case Values::devices: offer(formatted("compadd -- ${{(f)\"$({})\"}}", kListDevices)); break;
      case Values::files: offer("_files"); break;
    }
  }
  return R"sh(
# srun, sbatch and salloc: container options beside what completes these commands already
typeset -gA _scontainer_beside
_scontainer_slurm() {
    local -a with=(
)sh" + with +
         "    )\n    local -a without=(\n" + without + "    )\n    case $PREFIX in\n" + cases +
         R"sh(        -*)
            _describe -o 'container option' with -S = -- without -S ' '
            ;;
    esac
    local beside=${_scontainer_beside[$service]}
    if [[ -n $beside ]]; then $beside "$@"; elif [[ $PREFIX != -* ]]; then _default; fi
}
for _scontainer_command in srun sbatch salloc; do
    [[ ${_comps[$_scontainer_command]-} == (|_scontainer|_scontainer_slurm) ]] || _scontainer_beside[$_scontainer_command]=${_comps[$_scontainer_command]}
    compdef _scontainer_slurm $_scontainer_command
done
unset _scontainer_command
# As a file of $fpath, this is the function that is wanted.
if [[ ${funcstack[1]-} == _scontainer ]]; then
    if [[ $service == scontainer ]]; then _scontainer "$@"; else _scontainer_slurm "$@"; fi
fi
)sh";
}

}  // namespace spc::tool
