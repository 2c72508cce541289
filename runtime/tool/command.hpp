#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "request/options.hpp"
#include "tool/surroundings/places.hpp"

namespace spc::tool {

// --- command ---

/// One option: used by parser, help, completion and the test of the manual page.
struct OptionRow {
  const char* names;     ///< `--json` or `-y,--yes`
  const char* argument;  ///< nullptr: none
  const char* help;
  bool may_omit_value = false;  ///< `--NAME` or `--NAME=VALUE`

  /// Returns whether the next word is the option's value.
  [[nodiscard]] bool takes_next() const { return argument != nullptr && !may_omit_value; }
};

/// One command of scontainer.
struct Command {
  const char* name;
  const char* words;  ///< positional arguments, for the help: `IMAGE [COMMAND...]`
  const char* summary;
  const char* more;  ///< end of the command's help: explanation and examples
  std::span<const OptionRow> options;
  unsigned least_words;
  unsigned most_words;
  bool takes_rest;  ///< all words after the positional ones are a command, passed on unchanged
  int failure;      ///< exit status of failures of scontainer itself
  Result<int> (*run)(const Arguments&);
};

/// Returns all commands, in the order of the help.
std::span<const Command> command_table();

/// Parses the command line, runs the command and reports its error. Returns the exit status.
int run_command_line(int argc, char** argv);

/// Return the help of the program and of one command.
std::string program_help();
std::string command_help(const Command& command);

Result<int> run_pull(const Arguments& arguments);
Result<int> run_images(const Arguments& arguments);
Result<int> run_catalogue(const Arguments& arguments);
Result<int> run_inspect(const Arguments& arguments);
Result<int> run_rm(const Arguments& arguments);
Result<int> run_gc(const Arguments& arguments);
Result<int> run_containers(const Arguments& arguments);
Result<int> run_run(const Arguments& arguments);
Result<int> run_shell(const Arguments& arguments);
Result<int> run_exec(const Arguments& arguments);
Result<int> run_sandbox(const Arguments& arguments);
Result<int> run_stop(const Arguments& arguments);
Result<int> run_attach(const Arguments& arguments);
Result<int> run_import(const Arguments& arguments);
Result<int> run_env(const Arguments& arguments);
Result<int> run_export(const Arguments& arguments);
Result<int> run_build(const Arguments& arguments);
Result<int> run_push(const Arguments& arguments);
Result<int> run_login(const Arguments& arguments);
Result<int> run_logout(const Arguments& arguments);
Result<int> run_info(const Arguments& arguments);
Result<int> run_version(const Arguments& arguments);
Result<int> run_doctor(const Arguments& arguments);
Result<int> run_audit(const Arguments& arguments);
Result<int> run_metrics(const Arguments& arguments);
Result<int> run_cdi(const Arguments& arguments);
Result<int> run_completion(const Arguments& arguments);

/// `scontainer complete -- WORDS...`, which the completion scripts call: prints the candidates for
/// the last of the words, which are those of a command line up to the cursor. The first line names
/// what else fits: `files`, `slurm` (what the shell had for the command before), or `none`. Each
/// further line is a candidate, a tabulator and its help. Returns the exit status.
int print_completion(std::span<const std::string> words);
inline constexpr char kComplete[] = "complete";

/// Runs the internal command `submit-check` (protocol/submit.hpp). `words`: the arguments after its
/// name. Returns the exit status.
int run_submit_check(std::span<char*> words);
/// Runs the internal command `read-environment`.
int run_read_environment(std::span<char*> words);

/// Adds the variables of --env=NAME[=VALUE] to `into`: NAME alone has this process's value, if any.
Result<void> read_variables(const Arguments& arguments, std::map<std::string, std::string>& into);

// --- paths ---

/// Returns how the paths of this command line are read.
UserPaths own_paths();

// --- foreign words ---

/// Translates options of Apptainer, docker and podman before the image (`--nv`, `-B`, `-v`, `-it`)
/// to scontainer's options. An unsupported option is an error with a hint. An option without effect
/// is dropped, with a warning if that matters. `rows`: scontainer's own options.
Result<std::vector<std::string>> in_our_words(std::span<const std::string> words,
                                              std::span<const OptionRow> rows);

/// Returns the hint for an unknown command: its counterpart here, or a command with a similar name.
std::string hint_for_command(std::string_view name);

// --- run options ---

/// Returns a job option's name in `scontainer run`, without dashes: `mounts` for
/// `container-mounts`.
std::string name_of_run(const ContainerOption& option);

/// Returns the options of `scontainer run` and `shell`: the job options that apply without Slurm,
/// and those of `run` and `shell` only.
std::span<const OptionRow> run_options();

}  // namespace spc::tool
