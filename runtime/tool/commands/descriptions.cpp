// Commands about files that describe what jobs name: CDI devices, environments.

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json.hpp"
#include "base/new_file.hpp"
#include "base/text.hpp"
#include "config/config.hpp"
#include "hooks/cdi/cdi.hpp"
#include "hooks/cdi/generate.hpp"
#include "hooks/hook.hpp"
#include "hooks/hook_json.hpp"
#include "request/options.hpp"
#include "tool/command.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

void report_problems(const CdiRegistry& registry) {
  for (const std::string& problem : registry.problems()) report_error("warning: " + problem);
}

Result<int> list(const Arguments& arguments) {
  const auto registry = CdiRegistry::read();
  const auto devices = registry.devices();
  if (arguments.has("json")) {
    Json entries = Json::array();
    for (const CdiEntry& entry : devices)
      entries.push_back({{"name", entry.name()}, {"file", entry.file->path}});
    const Json document{{"devices", entries},
                        {"conflicts", registry.conflicts()},
                        {"problems", registry.problems()}};
    std::puts(document.str(2).c_str());
    return 0;
  }
  report_problems(registry);
  for (const std::string& name : registry.conflicts()) {
    const auto parsed = SPC_TRY(CdiName::parse(name));
    report_error("warning: " + registry.find(parsed).error().message());
  }
  if (devices.empty()) {
    report_error("no devices found (hint: scontainer cdi --help)");
    return 0;
  }
  std::size_t width = 8;
  for (const CdiEntry& entry : devices) width = std::max(width, entry.name().size());
  std::printf("%-*s  %s\n", static_cast<int>(width), "DEVICE", "FILE");
  for (const CdiEntry& entry : devices) {
    std::printf("%-*s  %s\n", static_cast<int>(width), entry.name().c_str(),
                printable(entry.file->path).c_str());
  }
  return 0;
}

void print(const char* what, const std::string& value) {
  std::printf("%-9s %s\n", what, printable(value).c_str());
}

std::string described(const MountEdit& mount) {
  std::string text = mount.source.empty() ? "tmpfs" : mount.source;
  if (mount.source != mount.target) text += " at " + mount.target;
  return text + (mount.read_only ? " (ro)" : "") + (mount.no_exec ? " (noexec)" : "");
}

Result<int> show_devices(const Arguments& arguments) {
  if (arguments.words.size() != 2)
    return Error(ErrorKind::invalid, "cdi show: device required")
        .hint("scontainer cdi list prints them");
  const auto name = SPC_TRY(CdiName::parse(arguments.words[1]));
  const auto registry = CdiRegistry::read();
  HookContext context;
  context.uid = ::geteuid();
  context.gid = ::getegid();
  const auto devices = SPC_TRY(registry.find(name));
  const auto edits = SPC_TRY(edits_for(context, devices));
  if (arguments.has("json")) {
    const std::string text = SPC_TRY(edits_to_json(edits));
    std::puts(SPC_TRY(Json::parse(text)).str(2).c_str());
    return 0;
  }
  report_problems(registry);
  for (const std::string& note : edits.notes) print("note", note);
  for (const auto& [variable, value] : edits.environment.set)
    print("variable", variable + "=" + value);
  for (const DeviceEdit& device : edits.devices)
    print("device", device.path + (device.source.empty() ? "" : " from " + device.source));
  for (const MountEdit& mount : edits.mounts) print("mount", described(mount));
  for (const LibraryEdit& library : edits.libraries)
    print("library", formatted("{} is {}", library.soname, library.path));
  for (const SymlinkEdit& link : edits.symlinks)
    print("link", formatted("{} to {}", link.path, link.target));
  for (const FileEdit& file : edits.files) print("file", file.path);
  for (const std::string& warning : edits.warnings) report_error("warning: " + warning);
  return 0;
}

Result<int> generate(const Arguments& arguments) {
  const std::string output = arguments.value("output");
  std::string format = arguments.value("format");
  if (format.empty()) format = output.ends_with(".json") ? "json" : "yaml";
  if (format != "json" && format != "yaml") {
    return Error(ErrorKind::invalid,
                 formatted("--format: {} is not json or yaml", in_quotes(format)));
  }
  const bool to_file = !output.empty() && output != "-";
  if (to_file && !output.ends_with(".json") && !output.ends_with(".yaml")) {
    return Error(ErrorKind::invalid,
                 formatted("--output: {}: the name of a CDI file must end in .json or .yaml",
                           in_quotes(output)));
  }
  const std::string driver_root = SitePolicy::read().driver_root;
  const NvidiaDriver driver = discover_nvidia("", driver_root);
  if (driver.gpus.empty() || !driver.versions_agree()) {
    std::string why = "cdi generate: no working NVIDIA GPU found";
    for (const std::string& note : driver.notes) why += "; " + note;
    return Error(ErrorKind::not_found, why)
        .hint("CDI files for other devices are written by their vendors' tools");
  }
  const CdiSpec spec = nvidia_cdi_spec(driver, driver_root);
  const std::string text = format == "json" ? cdi_to_json(spec) : cdi_to_yaml(spec);
  if (!to_file) return std::fputs(text.c_str(), stdout) < 0 ? 1 : 0;
  auto file = SPC_TRY(NewFile::create(output, Replace::yes));
  SPC_TRY_DURING("write " + in_quotes(output), write_all(file.file(), text));
  SPC_TRY(file.publish());
  return 0;
}

}  // namespace

Result<int> run_cdi(const Arguments& arguments) {
  const std::string& action = arguments.words[0];
  if (action == "list") return list(arguments);
  if (action == "show") return show_devices(arguments);
  if (action == "generate") return generate(arguments);
  return Error(ErrorKind::invalid,
               formatted("cdi: {} is not list, show or generate", in_quotes(action)))
      .hint("scontainer cdi --help");
}

// --- environments ---

namespace {

/// Returns the environment as one JSON document, with the keys of the file.
Json as_json(const NamedEnvironment& environment) {
  Json document = Json::object();
  for (const char* list : {"mounts", "devices"}) document[list] = Json::array();
  for (const char* table : {"env", "annotations"}) document[table] = Json::object();
  for (const EnvironmentValue& value : environment.values) {
    const std::size_t dot = value.key.find('.');
    if (dot != std::string::npos) {
      document[value.key.substr(0, dot)][value.key.substr(dot + 1)] = value.text;
    } else if (value.key == "mounts" || value.key == "devices") {
      document[value.key].push_back(value.text);
    } else if (value.key == "writable" || value.key == "entrypoint") {
      document[value.key] = value.text == "true";
    } else {
      document[value.key] = value.text;
    }
  }
  return document;
}

/// Checks the values as srun does, without an image.
Result<void> check_values(const NamedEnvironment& environment) {
  OptionTexts texts;
  SPC_TRY(texts.add_environment(environment));
  LaunchRequest request{.paths = own_paths()};
  return texts.apply_to(request, ReadAt::submission, [](const ContainerOption& option) {
    return std::string("--") + option.name;
  });
}

/// Reads and checks an environment. Warns of annotations without effect.
Result<NamedEnvironment> read_checked(const EnvironmentPlaces& places, const std::string& name) {
  auto environment = SPC_TRY(places.read(name));
  SPC_TRY(check_values(environment));
  if (const auto foreign = environment.foreign_annotations(); !foreign.empty())
    report_error("warning: " + warning_about(foreign, environment.file));
  return environment;
}

Result<int> list_environments(const EnvironmentPlaces& places, bool json) {
  const auto all = places.list();
  Json entries = Json::array();
  std::vector<std::vector<std::string>> table{{"NAME", "IMAGE", "FILE"}};
  for (const auto& [name, file] : all) {
    const auto environment = places.read(file);
    std::string image;
    if (environment) {
      for (const EnvironmentValue& value : environment->values) {
        if (value.key == "image") image = without_secrets(value.text);
      }
    }
    Json entry{{"name", name}, {"file", file}, {"image", image}};
    if (!environment) entry["error"] = environment.error().message();
    entries.push_back(std::move(entry));
    table.push_back({printable(name),
                     !environment    ? "(invalid)"
                     : image.empty() ? "-"
                                     : printable(image),
                     printable(file)});
  }
  if (json) {
    std::puts(Json{{"environments", entries}, {"directories", places.directories}}.str(2).c_str());
    return 0;
  }
  if (all.empty())
    report_error(formatted("no environments in {}", printable(joined(places.directories, ", "))));
  else
    print_table(table);
  return 0;
}

/// Prints each value with the file and line that it is from.
void print_values(const NamedEnvironment& environment, bool json) {
  if (json) {
    Json values = Json::array();
    for (const EnvironmentValue& value : environment.values) {
      Json entry{{"key", value.key}, {"value", value.text}, {"origin", value.origin}};
      if (find_option(value.option) != nullptr) {
        const std::string text = value.value.empty() ? "" : "=" + value.value;
        entry["option"] = "--" + value.option + text;
      }
      values.push_back(std::move(entry));
    }
    const Json document{{"name", environment.name}, {"file", environment.file}, {"values", values}};
    std::puts(document.str(2).c_str());
    return;
  }
  std::vector<std::vector<std::string>> table{{"KEY", "VALUE", "FROM"}};
  for (const EnvironmentValue& value : environment.values)
    table.push_back({printable(value.key), printable(value.text), printable(value.origin)});
  print_table(table);
}

}  // namespace

Result<int> run_env(const Arguments& arguments) {
  const std::string& action = arguments.words[0];
  const auto places = EnvironmentPlaces::of_this_process(own_paths());
  const bool json = arguments.has("json");
  constexpr std::string_view kActions[] = {"list", "show", "validate", "render"};
  if (std::ranges::find(kActions, action) == std::end(kActions)) {
    return Error(ErrorKind::invalid, formatted("unknown action {}", in_quotes(action)))
        .hint("scontainer env list, show, validate or render");
  }
  if (action == "list") {
    if (arguments.words.size() == 1) return list_environments(places, json);
    return Error(ErrorKind::invalid, "env list takes no name")
        .hint("scontainer env show " + printable(arguments.words[1]));
  }
  if (arguments.words.size() < 2)
    return Error(ErrorKind::invalid, formatted("env {} needs a name or file", action))
        .hint("scontainer env list shows the names");
  const auto environment = SPC_TRY(read_checked(places, arguments.words[1]));
  if (action == "show") {
    print_values(environment, json);
  } else if (action == "render") {
    std::puts(as_json(environment).str(2).c_str());
  } else if (json) {
    std::puts(Json{{"file", environment.file}, {"valid", true}}.str(2).c_str());
  } else {
    std::printf("%s is valid\n", printable(environment.file).c_str());
  }
  return 0;
}

}  // namespace spc::tool
