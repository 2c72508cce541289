// Completion of commands, options and their values. `scontainer complete -- WORDS...` answers for
// all shells, from the rows that the parser uses: a shell's script passes on the words up to the
// cursor and adds the answer to its own candidates.

#include <algorithm>
#include <cstdio>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.hpp"
#include "base/text.hpp"
#include "hooks/cdi/registry.hpp"
#include "request/options.hpp"
#include "tool/command.hpp"
#include "tool/containers/own_containers.hpp"
#include "tool/containers/running.hpp"
#include "tool/containers/stored_containers.hpp"
#include "tool/images/stored_images.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {

// --- answer ---

namespace {

/// The answer for one word: a line that names what else fits, then a line for each candidate.
struct Answer {
  std::string word;         ///< up to the cursor
  std::string option = {};  ///< `--name=` if the word is a value behind it; candidates include it
  const char* else_fits = "none";  ///< files, slurm (what completed the command before), none
  std::string candidates = {};     ///< each with a tabulator, its help and a line end

  void add(std::string_view text, std::string_view help = {}) {
    const std::string whole = option + printable(text);
    if (whole.starts_with(word)) candidates += formatted("{}\t{}\n", whole, help);
  }
};

// --- values ---

void add_files(Answer& answer) { answer.else_fits = "files"; }

void add_images(Answer& answer) {
  const auto places = Places::find();
  for (const std::string& path :
       {places ? places->store : std::string(), std::string(SPC_STORE_DIR)}) {
    const auto store = open_store(path);
    if (!store) continue;
    const auto images = list_images(store->get());
    if (!images) continue;
    for (const ListedImage& image : *images) {
      for (const StoredName& name : image.all_names()) answer.add(name.name);
    }
  }
  add_files(answer);
}

void add_containers(Answer& answer) {
  const auto add = [&](const auto& one) { answer.add(one.name, printable(one.image)); };
  if (const auto stored = stored_containers()) std::ranges::for_each(*stored, add);
  std::ranges::for_each(own_containers(), add);
  const auto places = Places::find();
  if (!places) return;
  if (const auto running = running_containers(places->running))
    std::ranges::for_each(*running, add);
}

void add_devices(Answer& answer) {
  const auto registry = CdiRegistry::read();
  for (const CdiEntry& entry : registry.devices()) answer.add(entry.name());
}

void add_environments(Answer& answer) {
  for (const auto& [name, file] : EnvironmentPlaces::of_this_process(own_paths()).list())
    answer.add(name, printable(file));
  add_files(answer);
}

void add_shells(Answer& answer) {
  for (const char* shell : {"bash", "fish", "zsh"}) answer.add(shell);
}

/// Candidates of an argument, by the beginning of its name in the help.
struct Noun {
  std::string_view begins;
  void (*add)(Answer& answer);
};
constexpr Noun kNouns[] = {{"IMAGE", add_images},
                           {"[USER@]", add_images},
                           {"CONTAINER", add_containers},
                           {"DEVICE", add_devices},
                           {"VENDOR/", add_devices},
                           {"SHELL", add_shells},
                           {"NAME|FILE", add_environments},
                           {"FILE", add_files},
                           {"DIR", add_files},
                           {"FILE|DIR", add_files},
                           {"PATH", add_files},
                           {"SRC", add_files},
                           {"COMMAND", add_files},
                           {"containers NAME", add_containers}};

/// `noun`: an argument as in the help: words such as `yaml|json`, or a name such as `IMAGE`.
void add_values(Answer& answer, std::string_view command, std::string_view noun) {
  const std::string of_command = formatted("{} {}", command, noun);
  for (const Noun& known : kNouns) {
    if (noun.starts_with(known.begins) || of_command.starts_with(known.begins))
      return known.add(answer);
  }
  const auto is_word = [](char c) { return (c >= 'a' && c <= 'z') || c == '|'; };
  if (noun.empty() || !std::ranges::all_of(noun, is_word)) return;
  for (const std::string_view word : split(noun, '|')) answer.add(word);
}

/// Returns the name in the help of a command's argument: of `IMAGE [COMMAND...]`, COMMAND from the
/// second on. Empty if it has no such argument.
std::string_view noun_of(const Command& command, std::size_t index) {
  const auto nouns = split(command.words, ' ');
  const bool repeats = nouns.back().find("...") != std::string_view::npos;
  if (index >= nouns.size() && !repeats) return {};
  std::string_view noun = nouns[std::min(index, nouns.size() - 1)];
  if (noun.starts_with('[') && noun.ends_with(']')) noun = noun.substr(1, noun.size() - 2);
  return noun.substr(0, noun.find("..."));
}

// --- words ---

/// Returns the option with this name, dashes included; nullptr if there is none.
const OptionRow* row_of(std::span<const OptionRow> rows, std::string_view name) {
  const auto found = std::ranges::find_if(rows, [&](const OptionRow& row) {
    return std::ranges::count(split(row.names, ','), name) > 0;
  });
  return found == rows.end() ? nullptr : &*found;
}

/// Answers if the last word is a value: behind `--name=`, or a word behind an option's name.
bool add_value_of_option(Answer& answer, const Command& command, std::string_view before) {
  const std::string_view word = answer.word;
  const std::size_t equals = word.starts_with('-') ? word.find('=') : 0;
  const OptionRow* row = row_of(command.options, equals == 0 ? before : word.substr(0, equals));
  if (row == nullptr || row->argument == nullptr || equals == std::string::npos) return false;
  if (equals == 0 && !row->takes_next()) return false;
  if (equals > 0) answer.option = word.substr(0, equals + 1);
  add_values(answer, command.name, row->argument);
  return true;
}

/// Returns whether the last word is the value of an option.
bool complete_command(Answer& answer, const Command& command, std::span<const std::string> words) {
  std::size_t arguments = 0;
  std::string_view before;
  for (const std::string& word : words) {
    const OptionRow* row = row_of(command.options, before);
    const bool is_value = row != nullptr && row->takes_next();
    if (!is_value && !word.starts_with('-')) ++arguments;
    before = is_value ? std::string_view() : word;
  }
  const std::size_t own = command.run == run_sandbox ? 2 : command.least_words;
  const bool is_rest = command.takes_rest && arguments >= own;
  if (!is_rest && add_value_of_option(answer, command, before)) return true;
  if (is_rest || !answer.word.starts_with('-')) {
    add_values(answer, command.name, noun_of(command, arguments));
    return false;
  }
  answer.add("--help", "print the options");
  for (const OptionRow& row : command.options) {
    for (const std::string_view name : split(row.names, ',')) {
      const bool has_value = row.takes_next() && name.starts_with("--");
      answer.add(formatted("{}{}", name, has_value ? "=" : ""), row.help);
    }
  }
  return false;
}

void complete_scontainer(Answer& answer, std::span<const std::string> words) {
  if (!words.empty() && words[0] != "help") {
    for (const Command& command : command_table()) {
      if (words[0] == command.name) complete_command(answer, command, words.subspan(1));
    }
    return;
  }
  for (const Command& command : command_table()) answer.add(command.name, command.summary);
  answer.add("--help", "list the commands");
  answer.add("--version", "print the version");
}

/// Completes the container options of srun, sbatch and salloc.
void complete_slurm(Answer& answer, std::span<const std::string> words) {
  std::deque<std::string> names;  // storage of the names in the rows
  std::vector<OptionRow> rows;
  for (const ContainerOption& option : container_options()) {
    const std::string_view help = option.help;
    // srun --help also lists options of other plugins.
    const std::size_t begin = help.starts_with("[container] ") ? help.find(' ') + 1 : 0;
    names.push_back(std::string("--") + option.name);
    rows.push_back(
        {names.back().c_str(), option.argument, option.help + begin, option.has_argument() == 2});
  }
  const Command slurm{"srun", "", "", "", rows, 0, 0, false, 0, nullptr};
  if (!complete_command(answer, slurm, words)) answer.else_fits = "slurm";
}

}  // namespace

int print_completion(std::span<const std::string> words) {
  if (words.size() < 2) return 1;
  Answer answer{.word = words.back()};
  const auto before = words.subspan(1, words.size() - 2);
  const std::string_view program = std::string_view(words[0]).substr(words[0].rfind('/') + 1);
  (program == "scontainer" ? complete_scontainer : complete_slurm)(answer, before);
  std::printf("%s\n%s", answer.else_fits, answer.candidates.c_str());
  return 0;
}

// --- scripts ---

namespace {

constexpr char kBash[] =
    R"sh(# bash completion for scontainer and Slurm's commands: source <(scontainer completion bash)
declare -gA _scontainer_beside
# Slurm's completion is one file for all its commands, so it is loaded before ours replaces it.
_scontainer_take_over() {
    local command found
    for command in srun sbatch salloc; do
        { _comp_load $command || _completion_loader $command; } &>/dev/null
    done
    for command in srun sbatch salloc; do
        found=$(complete -p $command 2>/dev/null)
        if [[ $found == *' -F '* && $found != *_scontainer* ]]; then
            found=${found##* -F }
            _scontainer_beside[$command]=${found%% *}
        fi
        complete -F _scontainer $command
    done
}
_scontainer() {
    local line=${COMP_LINE-${COMP_WORDS[*]}} word words option= found
    line=${line:0:${COMP_POINT:-${#line}}}
    word=${line##*[[:space:]]}
    read -ra words <<<"${line%"$word"}"
    mapfile -t found < <(scontainer complete -- "${words[@]}" "$word" 2>/dev/null)
    if [[ ${found[0]} == slurm ]]; then
        words=${words[0]##*/}
        [[ ${_scontainer_beside[$words]} ]] || _scontainer_take_over
        if [[ ${_scontainer_beside[$words]} ]]; then
            "${_scontainer_beside[$words]}" "$@" 2>/dev/null
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$2")
        fi
    else
        [[ $word != --*=* ]] || option=${word%%=*}=
        COMPREPLY=()
        [[ ${found[0]} != files ]] ||
            mapfile -t COMPREPLY < <(compgen -f -P "$option" -- "${word#"$option"}")
        # The shell treats the text behind = and : as a word of its own.
        option=${word%"${word##*[=:]}"}
        COMPREPLY=("${COMPREPLY[@]#"$option"}")
        [[ ! -e ${COMPREPLY[0]} ]] || compopt -o filenames 2>/dev/null
    fi
    for word in "${found[@]:1}"; do
        word=${word%%$'\t'*}
        COMPREPLY+=("${word#"$option"}")
    done
    [[ ${COMPREPLY[*]} != *= ]] || compopt -o nospace 2>/dev/null
}
complete -F _scontainer scontainer
_scontainer_take_over
)sh";

constexpr char kZsh[] = R"sh(#compdef scontainer srun sbatch salloc
# zsh completion for scontainer and Slurm's commands: source <(scontainer completion zsh), or as
# _scontainer in a directory of $fpath
typeset -gA _scontainer_beside
_scontainer() {
    local tab=$'\t' beside=${_scontainer_beside[$service]}
    local -a found=("${(@f)$(scontainer complete -- "${(@Q)words[1,CURRENT-1]}" "$PREFIX" \
        2>/dev/null)}")
    local otherwise=${found[1]}
    found=("${(@)${(@)found[2,-1]//:/\\:}/$tab/:}")
    local -a with=(${(M)found:#*=:*}) without=(${found:#*=:*})
    _describe candidate with -S '' -- without
    case $otherwise in
        files) compset -P '--*='; _files ;;
        slurm)
            if [[ -n $beside ]]; then $beside "$@"; elif [[ $PREFIX != -* ]]; then _default; fi
            ;;
    esac
}
() {
    local command
    for command in srun sbatch salloc; do
        [[ ${_comps[$command]-} == (|_scontainer) ]] ||
            _scontainer_beside[$command]=${_comps[$command]}
    done
}
compdef _scontainer scontainer srun sbatch salloc
# As a file of $fpath, this is the function itself.
[[ ${funcstack[1]-} != _scontainer ]] || _scontainer "$@"
)sh";

constexpr char kFish[] =
    R"sh(# fish completion for scontainer and Slurm's commands: scontainer completion fish | source
function __scontainer
    scontainer complete -- (commandline -opc) (commandline -ct) 2>/dev/null
end
for command in scontainer srun sbatch salloc
    complete -c $command -n '__scontainer | head -n 1 | string match -q none' -f
    complete -c $command -a '(__scontainer | tail -n +2 | string replace -r "=\t" \t)'
end
)sh";

}  // namespace

Result<int> run_completion(const Arguments& arguments) {
  const std::string& shell = arguments.words[0];
  const char* script = shell == "bash"   ? kBash
                       : shell == "fish" ? kFish
                       : shell == "zsh"  ? kZsh
                                         : nullptr;
  if (script == nullptr)
    return Error(ErrorKind::invalid, "no completion for " + in_quotes(shell))
        .hint("bash, fish or zsh");
  std::fputs(script, stdout);
  return 0;
}

}  // namespace spc::tool
