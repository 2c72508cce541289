#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace spc {

/// What was typed behind the name of a command.
struct Arguments {
  std::map<std::string, std::vector<std::string>, std::less<>> options;  ///< by long name, without dashes
  std::vector<std::string> words;                                        ///< what is no option
  std::vector<std::string> rest;                                         ///< as typed, for a command to be run

  [[nodiscard]] bool has(std::string_view option) const { return options.find(option) != options.end(); }
  /// The last one given; empty if there is none.
  [[nodiscard]] std::string value(std::string_view option) const {
    const auto found = options.find(option);
    return found == options.end() || found->second.empty() ? std::string() : found->second.back();
  }
  [[nodiscard]] std::vector<std::string> values(std::string_view option) const {
    const auto found = options.find(option);
    return found == options.end() ? std::vector<std::string>() : found->second;
  }
};

/// One option: parser, help, shell completion and the test of the manual page read this.
struct OptionRow {
  const char* names;     ///< `--json` or `-y,--yes`
  const char* argument;  ///< nullptr: it has none
  const char* help;
};

/// One command of scontainer.
struct Command {
  const char* name;
  const char* words;  ///< what follows the options, for people: `IMAGE [COMMAND...]`
  const char* summary;
  const char* more;  ///< behind the options in its help: explanation and examples
  std::span<const OptionRow> options;
  unsigned least_words;
  unsigned most_words;
  bool takes_rest;  ///< everything behind the words is a command and left as it is
  int failure;      ///< exit status when it fails by itself
  Result<int> (*run)(const Arguments&);
};

/// All commands, in the order of the help.
std::span<const Command> command_table();

/// Parses the command line, runs the command and reports its error; returns the exit status.
int run_command_line(int argc, char** argv);

/// The helps, as text: of the program, and of one command.
std::string program_help();
std::string command_help(const Command& command);

Result<int> run_pull(const Arguments& arguments);
Result<int> run_images(const Arguments& arguments);
Result<int> run_inspect(const Arguments& arguments);
Result<int> run_rm(const Arguments& arguments);
Result<int> run_gc(const Arguments& arguments);
Result<int> run_run(const Arguments& arguments);
Result<int> run_shell(const Arguments& arguments);
Result<int> run_exec(const Arguments& arguments);
Result<int> run_import(const Arguments& arguments);
Result<int> run_export(const Arguments& arguments);
Result<int> run_login(const Arguments& arguments);
Result<int> run_logout(const Arguments& arguments);
Result<int> run_info(const Arguments& arguments);
Result<int> run_version(const Arguments& arguments);
Result<int> run_doctor(const Arguments& arguments);
Result<int> run_cdi(const Arguments& arguments);
Result<int> run_completion(const Arguments& arguments);

}  // namespace spc
