#include "launch/spec/container_spec.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <climits>
#include <utility>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json.hpp"
#include "base/text.hpp"
#include "protocol/image_record.hpp"
#include "protocol/task.hpp"
#include "reference/location.hpp"
#include "task/root_setup.hpp"

namespace spc {

// --- container spec ---

namespace {

/// Returns the program that runs before the tasks. enroot's /etc/rc executes the entrypoint of the
/// source image. Apptainer's runscript is the image's main program and not a wrapper, so it runs
/// only on the user's request.
std::vector<std::string> entrypoint_of(const ImageSettings& image, bool asked_by_user) {
  if (!image.entrypoint.empty() || image.start_script.empty()) return image.entrypoint;
  if (image.start_script != kEnrootScript && !asked_by_user) return {};
  return {"/bin/sh", image.start_script};
}

}  // namespace

std::vector<std::string> own_program_of(const ImageSettings& image, bool has_arguments) {
  std::vector<std::string> words = entrypoint_of(image, true);
  const bool has_script = image.entrypoint.empty() && !words.empty();
  if (!has_arguments && !has_script)
    words.insert(words.end(), image.command.begin(), image.command.end());
  return words;
}

Result<void> add_image_record(ContainerSpec& spec, int record, const Digest& manifest) {
  ImageRecordHeader header;
  constexpr std::uint64_t kSane = 4 << 20;
  const ssize_t size = ::pread(record, &header, sizeof header, 0);
  if (size == 0) {
    spec.settings.in_files = true;
    return {};
  }
  if (size != sizeof header || header.settings.size > kSane) {
    return Error(ErrorKind::corrupt, "read the image's settings: unexpected record");
  }
  std::string records(header.settings.size, '\0');
  if (::pread(record, records.data(), records.size(), static_cast<off_t>(header.settings.offset)) !=
      static_cast<ssize_t>(records.size())) {
    return Error(ErrorKind::corrupt, "read the image's settings: truncated record");
  }
  spec.settings = ImageSettings::parse(records);
  spec.layers = header.layer_count;
  if (manifest != Digest()) spec.manifest = manifest;
  return {};
}

std::string workdir_of(const LaunchRequest& request, const ImageSettings& image) {
  const std::string& workdir = request.workdir.empty() ? image.workdir : request.workdir;
  if (workdir.empty()) return "/";
  return workdir[0] == '/' ? workdir : "/" + workdir;
}

EntrypointMode entrypoint_mode(const LaunchRequest& request, const SitePolicy& site) {
  const auto of_site = site.entrypoint == "task"   ? EntrypointMode::task
                       : site.entrypoint == "node" ? EntrypointMode::node
                                                   : EntrypointMode::no;
  if (!request.entrypoint) return of_site;
  if (!*request.entrypoint) return EntrypointMode::no;
  return of_site == EntrypointMode::no ? EntrypointMode::node : of_site;
}

void decide(ContainerSpec& spec, const LaunchRequest& request, const SitePolicy& site,
            const std::map<std::string, std::string>& job_environment) {
  spec.workdir = workdir_of(request, spec.settings);
  ImageSettings& image = spec.settings;
  if (!request.entrypoint.value_or(true)) {
    image.environment.insert(image.environment.end(), image.assignments.begin(),
                             image.assignments.end());
    image.environment_scripts.clear();
  }
  // Programs that open a shell read SHELL; many images have only sh.
  if (::access(spec.user.shell.c_str(), X_OK) != 0) spec.user.shell = "/bin/sh";
  spec.environment =
      merge_environment(job_environment, spec.settings, EnvironmentWishes::of_site(site),
                        request.environment, spec.user, spec.workdir);
  spec.entrypoint_mode = entrypoint_mode(request, site);
  if (spec.entrypoint_mode != EntrypointMode::no)
    spec.entrypoint = entrypoint_of(spec.settings, request.entrypoint.value_or(false));
  if (image.environment_scripts.empty()) return;
  if (spec.entrypoint_mode == EntrypointMode::no) spec.entrypoint_mode = EntrypointMode::task;
  spec.entrypoint = image.after_scripts(std::move(spec.entrypoint));
}

Result<void> enter_workdir(const ContainerSpec& spec, const LaunchRequest& request) {
  const UniqueFd directory = open_inside(spec.workdir.c_str(), O_PATH | O_DIRECTORY);
  if (!directory || ::fchdir(directory.get()) != 0) {
    auto error = Error::from_errno(errno, "couldn't chdir to " + in_quotes(spec.workdir));
    return in_words(
        request.style, Event::no_workdir, spec.workdir,
        std::move(error).hint(
            request.workdir.empty()
                ? "this is the image's work directory; set another with --container-workdir"
                : "--container-workdir must exist in the image or be a mount"));
  }
  return {};
}

// --- explain ---

namespace {

/// Returns whether the name is typical of a variable with a secret.
bool may_be_secret(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  constexpr std::array<std::string_view, 5> kMarks{"TOKEN", "SECRET", "PASS", "KEY", "CREDENTIAL"};
  return std::any_of(kMarks.begin(), kMarks.end(),
                     [&](auto mark) { return name.find(mark) != std::string::npos; });
}

std::string words(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& word : list) text += (text.empty() ? "" : " ") + in_quotes(word);
  return text;
}

std::string flags_in_words(const Mount& mount) {
  std::string text = (mount.flags & TaskMessage::source_read_only) != 0 ? "ro" : "rw";
  if ((mount.flags & TaskMessage::source_no_exec) != 0) text += "+noexec";
  if ((mount.flags & TaskMessage::source_no_symlinks) != 0) text += "+nosymfollow";
  if ((mount.flags & TaskMessage::source_no_devices) != 0) text += "+nodev";
  if ((mount.flags & TaskMessage::source_squashfs) != 0) text += "+sqsh";
  if ((mount.flags & TaskMessage::source_private) != 0) text += "+private";
  if ((mount.flags & TaskMessage::source_unbindable) != 0) text += "+unbindable";
  return text;
}

std::vector<std::string> namespaces_of(std::uint32_t bits) {
  std::vector<std::string> names{"mount"};
  for (const NamespaceKind& kind : kNamespaceKinds) {
    if ((bits & kind.bit) != 0) names.emplace_back(kind.name);
  }
  return names;
}

std::string joined(const std::vector<std::string>& list, std::string_view between = ", ") {
  std::string text;
  for (const std::string& word : list) text.append(text.empty() ? "" : between).append(word);
  return text;
}

/// Returns the facts as `os Debian GNU/Linux 12 (bookworm); python 3.11`.
std::string facts_in_words(const std::vector<std::string>& facts) {
  std::string text;
  for (std::string fact : facts) {
    if (const auto equals = fact.find('='); equals != std::string::npos) fact[equals] = ' ';
    text += (text.empty() ? "" : "; ") + printable(fact);
  }
  return text;
}

std::string file_system_of(const ContainerSpec& spec) {
  std::string text;
  switch (spec.from) {
    case ContainerSpec::From::store:
      text = std::to_string(spec.layers) + " layers in the store";
      break;
    case ContainerSpec::From::file: text = "squashfs file, served by FUSE"; break;
    case ContainerSpec::From::directory: text = "directory"; break;
  }
  if (spec.from == ContainerSpec::From::store && spec.by_fuse) text += ", served by FUSE";
  return text + (spec.writable ? "; writable, changes are discarded" : "; read-only");
}

std::string entrypoint_line(const ContainerSpec& spec) {
  if (!spec.settings.environment_scripts.empty() && !spec.entrypoint.empty())
    return "a shell that reads the env scripts first";
  if (spec.entrypoint_mode == EntrypointMode::node && !spec.entrypoint.empty())
    return words(spec.entrypoint) + ", once per node";
  if (spec.entrypoint_mode == EntrypointMode::task && !spec.entrypoint.empty())
    return words(spec.entrypoint) + ", in each task";
  std::string text = words(spec.settings.entrypoint);
  if (text.empty() && !spec.settings.start_script.empty())
    text = in_quotes(spec.settings.start_script);
  return text.empty() ? "" : text + ", not run";
}

class Page {
 public:
  void line(std::string_view key, const std::string& value) {
    std::string text(key);
    text += ": ";
    text.resize(std::max(text.size(), kColumn), ' ');
    lines_.push_back(text + value);
  }
  void line_unless_empty(std::string_view key, const std::string& value) {
    if (!value.empty()) line(key, value);
  }
  /// Adds a list, on as many lines as it needs; `end` follows the last element.
  void list(std::string_view key, const std::vector<std::string>& elements,
            const std::string& end) {
    std::string value;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const std::string next = elements[i] + (i + 1 < elements.size() ? ", " : end);
      if (!value.empty() && value.size() + next.size() > kWidth)
        line(key, std::exchange(value, ""));
      value += next;
    }
    line_unless_empty(key, value);
  }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  static constexpr std::size_t kWidth = 84;
  static constexpr std::size_t kColumn = 14;
  std::vector<std::string> lines_;
};

/// Returns the kernel's path of the source, or the type of a new file system.
std::string source_in_words(const Mount& mount) {
  if ((mount.flags & TaskMessage::source_terminals) != 0) return "devpts";
  char path[PATH_MAX];
  const auto size = ::readlink(("/proc/self/fd/" + std::to_string(mount.source.get())).c_str(),
                               path, sizeof path);
  if (size > 0) return std::string(path, static_cast<std::size_t>(size));
  return "tmpfs" + (mount.size != 0 ? ":size=" + std::to_string(mount.size) : "");
}

/// Returns the value as printed: without passwords of URLs; empty if it may be a secret.
std::optional<std::string> shown_value(const std::string& name, const std::string& value) {
  // Options and the plugin's notes about them have values of variables, with whole URLs. Slurm
  // 24.11 leaves the variables in which it carries options to the tasks.
  const bool is_option = name == "SLURM_SPANK_SCONTAINER_VARIABLES" ||
                         name == "SLURM_SPANK_SCONTAINER_BEATEN" || name == "SCONTAINER_ENV" ||
                         name == "PYXIS_CONTAINER_ENV" ||
                         name.find("SLURM_SPANK_OPTION_") != std::string::npos;
  if ((may_be_secret(name) || is_option) && !value.empty()) return {};
  const bool is_url = value.starts_with("https://") || value.starts_with("http://");
  return is_url ? without_secrets(value) : value;
}

std::string variable_line(const std::string& name, const Variable& variable) {
  const auto value = shown_value(name, variable.value);
  return formatted("{}={} ({}{})", printable(name), value ? in_quotes(*value) : "***",
                   name_of(variable.origin), variable.over_image ? ", not the image's" : "");
}

std::string mount_line(const ShownMount& mount) {
  return formatted("{} at {}, {} ({})", in_quotes(mount.source), in_quotes(mount.target),
                   mount.flags, mount.asked_by);
}

/// Returns the options and settings in force, and their source: those of the user, then the site's.
std::vector<std::pair<std::string, std::string>> options_in_force(const LaunchRequest& request,
                                                                  const SitePolicy& site) {
  constexpr std::string_view kShown[] = {
      "remap_root",   "entrypoint", "slurm",      "mounts",    "env",         "keep_env",
      "unsetenv",     "unshare",    "seccomp",    "gpu",       "prefer_cdi",  "driver_root",
      "mpi",          "fabric",     "frameworks", "hooks_off", "cuda_compat", "python_user_base",
      "enroot_compat"};
  auto all = request.given;
  for (const auto& [option, source] : site.options_of_user)
    all.emplace_back("--" + printable(option), printable(source));
  const auto is_given = [&](std::string_view name) {
    return std::ranges::any_of(request.given, [&](const auto& one) {
      return std::string_view(one.first).substr(0, one.first.find('=')) == name;
    });
  };
  const bool chosen = is_given("--container-writable") || is_given("--container-readonly");
  if (!request.writable.value_or(true) && !chosen)
    all.emplace_back("writable=false", "config.toml");
  const auto defaults = SitePolicy().records();
  for (const auto& [key, value] : site.records()) {
    const std::pair<std::string, std::string> record(key, value);
    if (std::ranges::find(kShown, key) == std::end(kShown) ||
        std::ranges::find(defaults, record) != defaults.end())
      continue;
    const bool overridden = std::ranges::any_of(
        request.overrides, [&](const auto& text) { return text.starts_with(record.first + "="); });
    const bool assigns = key == "env" && may_be_secret(value.substr(0, value.find('=')));
    const std::string shown = assigns ? value.substr(0, value.find('=')) : value;
    all.emplace_back(formatted("{}={}", key, printable(shown)),
                     overridden ? "plugstack.conf" : "config.toml");
  }
  return all;
}

/// Adds what the image is and which user the container has.
void add_container(Page& page, const ContainerSpec& spec) {
  page.line("image", printable(spec.image));
  if (spec.manifest) page.line("manifest", spec.manifest->str());
  page.line("file system", file_system_of(spec));
  page.line("user", formatted("{} ({}:{}), home {}{}", printable(spec.user.name), spec.user.uid,
                              spec.user.gid, in_quotes(spec.user.home),
                              (spec.namespaces & own_user) != 0 ? ", root in the container"
                                                                : ", no privileges"));
}

void add_namespaces(Page& page, const ContainerSpec& spec) {
  page.line("namespaces", joined(namespaces_of(spec.namespaces)) + " (all others are the host's)");
}

void add_program(Page& page, const ContainerSpec& spec, const LaunchRequest& request) {
  page.line("workdir", in_quotes(spec.workdir) +
                           (request.workdir.empty() ? " (image)" : " (--container-workdir)"));
  page.line_unless_empty("env scripts", words(spec.settings.environment_scripts));
  page.line_unless_empty("entrypoint", entrypoint_line(spec));
}

void add_options(Page& page, const LaunchRequest& request, const SitePolicy& site) {
  for (const auto& [option, source] : options_in_force(request, site))
    page.line("option", formatted("{} ({})", option, source));
}

/// Returns everything, in the order of a start.
std::vector<std::string> explain_all(const ContainerSpec& spec, const LaunchRequest& request,
                                     const SitePolicy& site) {
  Page page;
  add_container(page, spec);
  page.line_unless_empty("image's user", spec.settings.user.empty()
                                             ? ""
                                             : in_quotes(spec.settings.user) + ", ignored");
  add_namespaces(page, spec);
  add_program(page, spec, request);
  page.line_unless_empty("image's cmd", words(spec.settings.command));
  page.line_unless_empty("found in it", facts_in_words(spec.settings.facts));
  page.line_unless_empty("volumes", words(spec.settings.volumes));
  page.line_unless_empty("ports", words(spec.settings.ports));
  for (const auto& [hook, origin] : spec.hook_origins)
    page.line("hook", formatted("{} ({})", hook, printable(origin)));
  for (const auto& [hook, note] : spec.hooks)
    page.line("hook", formatted("{}: {}", hook, printable(note)));
  if (spec.hooks.empty()) page.line("hooks", "none had an effect");
  page.line_unless_empty("command", words(request.command));
  for (const ShownMount& mount : spec.mounts) {
    if (mount.source.empty()) {
      page.line("no mount", formatted("at {} (umount)", in_quotes(mount.target)));
    } else {
      page.line("mount", mount_line(mount));
    }
  }
  add_options(page, request, site);
  for (const auto& [name, variable] : spec.environment)
    page.line("variable", variable_line(name, variable));
  return page.take();
}

/// Adds the variables that differ from the job's: a line for each changed one, and the names of new
/// ones by their origin.
void add_changed_variables(Page& page, const Environment& environment,
                           const std::map<std::string, std::string>& job) {
  std::map<Origin, std::vector<std::string>> added;
  for (const auto& [name, variable] : environment) {
    const auto old = job.find(name);
    if (old == job.end()) {
      added[variable.origin].push_back(printable(name));
    } else if (old->second != variable.value) {
      page.line("changed", variable_line(name, variable));
    }
  }
  std::vector<std::string> removed;
  for (const auto& [name, value] : job) {
    if (!environment.contains(name)) removed.push_back(printable(name));
  }
  for (const auto& [origin, names] : added)
    page.list("added", names, formatted(" ({})", name_of(origin)));
  page.list("removed", removed, "");
}

/// Returns about a screen: image, mounts, changed variables, hooks with an effect, options.
std::vector<std::string> explain_briefly(const ContainerSpec& spec, const LaunchRequest& request,
                                         const SitePolicy& site,
                                         const std::map<std::string, std::string>& job) {
  Page page;
  add_container(page, spec);
  if ((spec.namespaces & ~std::uint32_t{own_user}) != 0) add_namespaces(page, spec);
  add_program(page, spec, request);
  page.line_unless_empty("command", words(request.command));
  std::vector<std::string> usual;
  for (const ShownMount& mount : spec.mounts) {
    if (mount.asked_by == "every container") {
      usual.push_back(mount.target);
    } else if (mount.source.empty()) {
      page.line("no mount", formatted("at {} (umount)", in_quotes(mount.target)));
    } else {
      page.line("mount", mount_line(mount));
    }
  }
  page.list("mounts", usual, " (every container)");
  for (const auto& [hook, note] : spec.hooks)
    page.line("hook", formatted("{}: {}", hook, printable(note)));
  add_options(page, request, site);
  add_changed_variables(page, spec.environment, job);
  page.line("more", "--container-explain=all prints all hooks and variables, =json prints JSON");
  return page.take();
}

Json environment_in_json(const Environment& environment) {
  Json all = Json::object();
  for (const auto& [name, variable] : environment) {
    Json one{{"origin", name_of(variable.origin)}, {"over_image", variable.over_image}};
    const auto value = shown_value(name, variable.value);
    if (value) one["value"] = *value;
    all[name] = std::move(one);
  }
  return all;
}

Json hooks_in_json(const ContainerSpec& spec) {
  Json all = Json::array();
  for (const auto& [name, origin] : spec.hook_origins) {
    std::vector<std::string> notes;
    for (const auto& [hook, note] : spec.hooks) {
      if (hook == name) notes.push_back(note);
    }
    all.push_back(Json{{"name", name}, {"origin", origin}, {"notes", notes}});
  }
  return all;
}

Json mounts_in_json(const ContainerSpec& spec) {
  Json all = Json::array();
  for (const ShownMount& mount : spec.mounts) {
    if (mount.source.empty()) continue;
    std::vector<std::string> flags;
    for (const std::string_view flag : split(mount.flags, '+')) flags.emplace_back(flag);
    all.push_back(Json{{"source", mount.source},
                       {"target", mount.target},
                       {"flags", flags},
                       {"asked_by", mount.asked_by}});
  }
  return all;
}

/// Returns everything as JSON. spank-container(7) lists the keys, which are stable.
Json explain_in_json(const ContainerSpec& spec, const LaunchRequest& request,
                     const SitePolicy& site) {
  constexpr const char* kFrom[] = {"store", "file", "directory"};
  constexpr const char* kModes[] = {"no", "node", "task"};
  std::map<std::string, std::string> facts;
  for (const std::string& fact : spec.settings.facts) {
    const auto equals = std::min(fact.find('='), fact.size());
    facts[fact.substr(0, equals)] = fact.substr(std::min(equals + 1, fact.size()));
  }
  Json options = Json::array();
  for (const auto& [option, source] : options_in_force(request, site))
    options.push_back(Json{{"option", option}, {"source", source}});
  std::vector<std::string> removed;
  for (const ShownMount& mount : spec.mounts) {
    if (mount.source.empty()) removed.push_back(mount.target);
  }
  Json all{{"image", spec.image},
           {"from", kFrom[static_cast<int>(spec.from)]},
           {"layers", spec.layers},
           {"fuse", spec.by_fuse},
           {"writable", spec.writable},
           {"namespaces", namespaces_of(spec.namespaces)},
           {"workdir", spec.workdir},
           {"entrypoint_runs", kModes[static_cast<int>(spec.entrypoint_mode)]},
           {"entrypoint", spec.entrypoint},
           {"command", request.command},
           {"removed_mounts", removed}};
  if (spec.manifest) all["manifest"] = spec.manifest->str();
  all["user"] = Json{{"name", spec.user.name},
                     {"uid", std::uint64_t{spec.user.uid}},
                     {"gid", std::uint64_t{spec.user.gid}},
                     {"home", spec.user.home},
                     {"root", (spec.namespaces & own_user) != 0}};
  all["image_settings"] = Json{{"user", spec.settings.user},
                               {"entrypoint", spec.settings.entrypoint},
                               {"command", spec.settings.command},
                               {"volumes", spec.settings.volumes},
                               {"ports", spec.settings.ports},
                               {"environment_scripts", spec.settings.environment_scripts},
                               {"facts", facts}};
  all["hooks"] = hooks_in_json(spec);
  all["mounts"] = mounts_in_json(spec);
  all["options"] = std::move(options);
  all["environment"] = environment_in_json(spec.environment);
  return all;
}

}  // namespace

std::vector<ShownMount> shown_mounts(const RootSetup& root) {
  std::vector<ShownMount> shown;
  auto removal = root.removals.begin();
  const auto add_removals = [&](std::size_t after) {
    for (; removal != root.removals.end() && removal->after <= after; ++removal)
      shown.push_back({{}, removal->target, {}, "umount"});
  };
  for (std::size_t i = 0; i < root.mounts.size(); ++i) {
    add_removals(i);
    const Mount& mount = root.mounts[i];
    shown.push_back({source_in_words(mount), mount.target, flags_in_words(mount), mount.asked_by});
  }
  add_removals(root.mounts.size());
  return shown;
}

std::vector<std::string> explain(const ContainerSpec& spec, const LaunchRequest& request,
                                 const SitePolicy& site,
                                 const std::map<std::string, std::string>& job) {
  switch (request.explain.value_or(ExplainForm::brief)) {
    case ExplainForm::all: return explain_all(spec, request, site);
    case ExplainForm::json: return {explain_in_json(spec, request, site).str(2)};
    default: return explain_briefly(spec, request, site, job);
  }
}

void print_explanation(const std::vector<std::string>& lines, ExplainForm form, Log& log) {
  for (const std::string& line : lines) {
    const bool done =
        form == ExplainForm::json && write_all(STDOUT_FILENO, line + "\n").has_value();
    if (!done) log.write(LogLevel::info, line);
  }
}

}  // namespace spc
