#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "base/format.hpp"
#include "base/log.hpp"
#include "tool/command.hpp"
#include "tool/other_words.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

constexpr int kWrongUsage = 2;

/// `--yes` of `-y,--yes`, without its dashes.
std::string long_name(const OptionRow& row) {
  std::string_view names = row.names;
  return std::string(names.substr(names.rfind("--") + 2));
}

std::string usage_line(const Command& command) {
  return std::string("scontainer ") + command.name +
         (command.options.empty() ? "" : " [OPTION...]") + (*command.words == '\0' ? "" : " ") +
         command.words;
}

void declare_options(CLI::App& app, const Command& command, Arguments& arguments) {
  for (const OptionRow& row : command.options) {
    const std::string name = long_name(row);
    if (row.argument == nullptr) {
      app.add_flag_function(row.names,
                            [&arguments, name](std::int64_t) { arguments.options[name]; });
    } else {
      // One value for each time the option is given, so that words behind it stay words.
      app.add_option_function<std::vector<std::string>>(
             row.names,
             [&arguments, name](const std::vector<std::string>& values) {
               arguments.options[name] = values;
             })
          ->expected(1)
          ->take_all()
          ->allow_extra_args(false);
    }
  }
}

/// Behind the first word of `run`, `shell` and `exec` everything belongs to the command: what looks
/// like an option there is none of ours. Returns how many of `words` are for us.
std::size_t own_part(const Command& command, std::span<const std::string> words) {
  if (!command.takes_rest) return words.size();
  std::size_t own_words = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.size() > 1 && word[0] == '-') {
      if (word == "--") return i;
      for (const OptionRow& row : command.options) {
        const bool is_it =
            ("," + std::string(row.names) + ",").find("," + word + ",") != std::string::npos;
        if (is_it && row.argument != nullptr) ++i;
      }
    } else if (++own_words == command.least_words) {
      return i + 1;
    }
  }
  return words.size();
}

int usage_error(const Command& command, const std::string& why) {
  report_error(formatted("{}: {} (hint: scontainer {} --help)", command.name, why, command.name));
  return command.takes_rest ? command.failure : kWrongUsage;
}

int run_one(const Command& command, std::span<const std::string> given) {
  Arguments arguments;
  std::vector<std::string> words(given.begin(), given.end());
  if (command.run == run_run || command.run == run_shell) {
    auto ours = in_our_words(given, command.options);
    if (!ours) return usage_error(command, ours.error().message());
    words = *std::move(ours);
  }
  const std::size_t own = own_part(command, words);
  arguments.rest.assign(words.begin() + static_cast<std::ptrdiff_t>(own), words.end());
  if (!arguments.rest.empty() && arguments.rest.front() == "--")
    arguments.rest.erase(arguments.rest.begin());
  CLI::App app;
  app.set_help_flag();
  bool help = false;
  app.add_flag("-h,--help", help);
  declare_options(app, command, arguments);
  auto* positionals = app.add_option("words", arguments.words);
  positionals->expected(0, 1 << 20);
  try {
    std::vector<std::string> reversed(words.begin(),
                                      words.begin() + static_cast<std::ptrdiff_t>(own));
    std::reverse(reversed.begin(), reversed.end());
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    return usage_error(command, printable(error.what()));
  }
  if (help) return std::fputs(command_help(command).c_str(), stdout) < 0 ? 1 : 0;
  if (arguments.words.size() < command.least_words || arguments.words.size() > command.most_words) {
    return usage_error(command, "usage: " + usage_line(command));
  }
  auto result = command.run(arguments);
  if (result) return *result;
  report_error(result.error().message());
  return command.failure;
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

}  // namespace

std::string command_help(const Command& command) {
  std::string text = formatted("usage: {}\n\n{}\n", usage_line(command), command.summary);
  if (!command.options.empty()) text += "\noptions:\n";
  for (const OptionRow& row : command.options) {
    std::string names = row.names;
    if (const auto comma = names.find(','); comma != std::string::npos)
      names.insert(comma + 1, " ");
    if (row.argument != nullptr)
      names += std::string(names.find("--") != std::string::npos ? "=" : " ") + row.argument;
    text += formatted("  {} {}\n", padded(names, 30), row.help);
  }
  return text + (*command.more == '\0' ? "" : "\n") + command.more;
}

std::string program_help() {
  std::string text =
      "usage: scontainer COMMAND [OPTION...] [ARGUMENT...]\n\n"
      "Manage container images and run containers without Slurm.\n\ncommands:\n";
  for (const Command& command : command_table())
    text += formatted("  {}{}\n", padded(command.name, 12), command.summary);
  return text +
         "\nexamples:\n"
         "  scontainer pull debian:12                          pull an image\n"
         "  scontainer run debian:12 cat /etc/os-release       run a command\n"
         "  scontainer run --mounts=./data:/data:ro IMAGE CMD  mount a directory\n"
         "  scontainer shell debian:12                         start a shell\n"
         "  scontainer inspect debian:12                       show OS, CUDA, MPI ...\n"
         "  scontainer export debian:12 debian.sqsh            write it to a file\n"
         "  scontainer doctor                                  check this machine\n\n"
         "See scontainer COMMAND --help and scontainer(1).\n";
}

int run_command_line(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string_view first =
      words.empty() ? std::string_view("--help") : std::string_view(words[0]);
  if (first == "--help" || first == "-h" || first == "help") {
    for (const Command& command : command_table()) {
      if (words.size() > 1 && words[1] == command.name)
        return std::fputs(command_help(command).c_str(), stdout) < 0 ? 1 : 0;
    }
    std::fputs(program_help().c_str(), words.empty() ? stderr : stdout);
    return words.empty() ? kWrongUsage : 0;
  }
  for (const Command& command : command_table()) {
    if (first == command.name ||
        (first == "--version" && std::string_view(command.name) == "version")) {
      return run_one(command, std::span(words).subspan(1));
    }
  }
  report_error(
      formatted("unknown command {} (hint: scontainer --help lists them)", in_quotes(first)));
  return kWrongUsage;
}

}  // namespace spc::tool
