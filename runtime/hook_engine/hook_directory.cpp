#include "hook_engine/hook_directory.hpp"

#include <fcntl.h>
#include <regex.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <tuple>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/json.hpp"
#include "base/unique_fd.hpp"

namespace spc {

// --- hook conditions ---

namespace {

class Expression {
 public:
  explicit Expression(const std::string& text)
      : error_(::regcomp(&compiled_, text.c_str(), REG_EXTENDED | REG_NOSUB)) {}
  ~Expression() {
    if (error_ == 0) ::regfree(&compiled_);
  }
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;

  [[nodiscard]] std::string problem() const {
    char text[200] = {};
    if (error_ != 0) ::regerror(error_, &compiled_, text, sizeof text);
    return text;
  }
  [[nodiscard]] bool matches(const std::string& text) const {
    return error_ == 0 && ::regexec(&compiled_, text.c_str(), 0, nullptr, 0) == 0;
  }

 private:
  regex_t compiled_{};
  int error_;
};

bool matches(const std::string& expression, const std::string& text) {
  return Expression(expression).matches(text);
}

Result<void> check_one(const char* where, const std::string& expression) {
  const std::string problem = Expression(expression).problem();
  if (problem.empty()) return {};
  return Error(ErrorKind::invalid, formatted("{}: {} is not an extended regular expression: {}",
                                             where, in_quotes(expression), problem));
}

}  // namespace

bool HookConditions::empty() const {
  return !always && annotations.empty() && commands.empty() && !has_bind_mounts &&
         environment.empty();
}

Result<void> HookConditions::check() const {
  for (const auto& [key, value] : annotations) {
    SPC_TRY(check_one("when.annotations", key));
    SPC_TRY(check_one("when.annotations", value));
  }
  for (const std::string& command : commands) SPC_TRY(check_one("when.commands", command));
  for (const auto& [name, value] : environment) SPC_TRY(check_one("when.env", value));
  return {};
}

bool HookConditions::hold(const HookContext& context) const {
  if (always && !*always) return false;
  if (has_bind_mounts && !(*has_bind_mounts && context.has_bind_mounts)) return false;
  if (!annotations.empty()) {
    const auto known = annotations_of(context);
    const auto is_there = [&](const auto& wanted) {
      return std::any_of(known.begin(), known.end(), [&](const auto& annotation) {
        return matches(wanted.first, annotation.first) && matches(wanted.second, annotation.second);
      });
    };
    if (!std::all_of(annotations.begin(), annotations.end(), is_there)) return false;
  }
  for (const auto& [name, value] : environment) {
    const std::string* of_job = context.of_job(name);
    if (of_job == nullptr || !matches(value, *of_job)) return false;
  }
  if (commands.empty()) return true;
  const auto is_this = [&](const std::string& command) {
    return matches(command, context.command.front());
  };
  return !context.command.empty() && std::any_of(commands.begin(), commands.end(), is_this);
}

std::map<std::string, std::string> annotations_of(const HookContext& context) {
  auto annotations = context.annotations;
  const auto add = [&](const char* name, const std::string* value) {
    if (value != nullptr && !value->empty())
      annotations[std::string("org.spank-container.") + name] = *value;
  };
  add("image", &context.image_name);
  add("mpi", &context.mpi);
  add("job", context.of_job("SLURM_JOB_ID"));
  add("step", context.of_job("SLURM_STEP_ID"));
  add("partition", context.of_job("SLURM_JOB_PARTITION"));
  return annotations;
}

// --- hook description ---

namespace {

constexpr std::size_t kMostText = 256 << 10;
constexpr std::uint64_t kMostSeconds = 24 * 60 * 60;
constexpr std::array<std::string_view, 5> kOurStages{"prepare", "create", "task", "start", "stop"};
/// Without poststart: at no point does a task already run while one of our processes can still run
/// hooks.
constexpr std::array<std::string_view, 5> kOciStages{"prestart", "createRuntime", "createContainer",
                                                     "startContainer", "poststop"};

Result<void> read_hook(JsonObject& document, ProgramEdit& into) {
  const auto* member = document.take_any("hook");
  if (member == nullptr) return {};
  auto hook = SPC_TRY(JsonObject::of(*member, "hook"));
  SPC_TRY(hook.take_path("path", into.path));
  SPC_TRY(hook.take("args", into.args));
  SPC_TRY(hook.take("env", into.env));
  SPC_TRY(hook.take("timeout", into.timeout));
  if (hook.has("timeout") && (into.timeout == 0 || into.timeout > kMostSeconds))
    return hook.problem("timeout", "is not between 1 and 86400 seconds");
  return hook.nothing_left();
}

Result<void> read_when(JsonObject& document, HookConditions& into) {
  const auto* member = document.take_any("when");
  if (member == nullptr) return {};
  auto when = SPC_TRY(JsonObject::of(*member, "when"));
  bool flag = false;
  SPC_TRY(when.take("always", flag));
  if (when.has("always")) into.always = flag;
  SPC_TRY(when.take("hasBindMounts", flag));
  if (when.has("hasBindMounts")) into.has_bind_mounts = flag;
  SPC_TRY(when.take("annotations", into.annotations));
  SPC_TRY(when.take("commands", into.commands));
  SPC_TRY(when.take("env", into.environment));
  SPC_TRY(when.nothing_left());
  return into.check();
}

template <typename List>
Result<void> check_stages(const JsonObject& document, const std::vector<std::string>& stages,
                          const List& known) {
  for (const std::string& stage : stages) {
    if (std::find(known.begin(), known.end(), stage) != known.end()) continue;
    std::string list;
    for (const auto name : known) list += (list.empty() ? "" : ", ") + std::string(name);
    return document.problem("stages", formatted("{} is not a stage ({})", in_quotes(stage), list));
  }
  return {};
}

}  // namespace

Result<HookDescription> HookDescription::parse(std::string_view text) {
  const auto json = SPC_TRY(JsonObject::parse(text));
  auto document = SPC_TRY(JsonObject::of(json));
  HookDescription description;
  std::string version = "1.0.0";
  SPC_TRY(document.take("version", version));
  if (version != "1.0.0") return document.problem("version", in_quotes(version) + " is not 1.0.0");
  SPC_TRY(read_hook(document, description.program));
  SPC_TRY(read_when(document, description.when));
  SPC_TRY(document.take("stages", description.stages));
  SPC_TRY(document.take("optional", description.optional));
  SPC_TRY(document.nothing_left());
  if (description.program.path.empty()) {
    SPC_TRY(check_stages(document, description.stages, kOurStages));
  } else {
    SPC_TRY(check_stages(document, description.stages, kOciStages));
    if (description.stages.empty()) return document.problem("stages", "is missing");
    if (description.when.empty()) return document.problem("when", "is missing");
  }
  return description;
}

Result<HookDescription> HookDescription::read(const std::string& path, uid_t owner) {
  const auto file = SPC_TRY(open_trusted_file(path, "hook", owner));
  const auto text = SPC_TRY_DURING(in_quotes(path), read_file(file.get(), kMostText));
  return SPC_TRY_DURING(in_quotes(path), parse(text));
}

// --- hook directory ---

namespace {

bool is_no_hook(std::string_view name) {
  constexpr std::array<std::string_view, 7> kEndings{"~",        ".bak",    ".orig",   ".swp",
                                                     ".rpmsave", ".rpmnew", ".rpmorig"};
  if (name.starts_with('.') || name.find(".dpkg-") != std::string_view::npos) return true;
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](auto ending) { return name.ends_with(ending); });
}

HookFile named(const std::string& directory, const std::string& name) {
  HookFile file;
  file.path = directory + "/" + name;
  file.stem = name.substr(0, name.rfind('.'));
  file.kind = name.ends_with(".sh")     ? HookFile::Kind::shell
              : name.ends_with(".json") ? HookFile::Kind::description
                                        : HookFile::Kind::program;
  return file;
}

bool is_null_device(const struct stat& status) {
  return S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 3);
}

/// Returns whether the file only disables the built-in hook of the same name.
Result<bool> is_off(const HookFile& file, uid_t owner) {
  struct stat status {};
  if (::stat(file.path.c_str(), &status) == 0 && is_null_device(status)) return true;
  const UniqueFd opened = SPC_TRY(open_trusted_file(file.path, "hook", owner));
  if (::fstat(opened.get(), &status) != 0)
    return Error::from_errno(errno, "hook " + in_quotes(file.path));
  return status.st_size == 0 ||
         (file.kind != HookFile::Kind::description && (status.st_mode & 0111) == 0);
}

}  // namespace

Result<std::vector<HookFile>> read_hook_directory(const std::string& path, uid_t owner) {
  std::vector<HookFile> files;
  auto opened = open_trusted_directory(path, "directory of hooks", owner);
  if (!opened && opened.error().sys_errno() == ENOENT) return files;
  if (!opened) return std::move(opened).error();
  DirectoryReader entries(*std::move(opened));
  while (entries.next()) {
    struct stat status {};
    if (is_no_hook(entries.name())) continue;
    if (::fstatat(entries.descriptor(), entries.c_name(), &status, 0) == 0 &&
        S_ISDIR(status.st_mode))
      continue;
    files.push_back(named(path, entries.c_name()));
    files.back().off = SPC_TRY(is_off(files.back(), owner));
  }
  if (entries.error() != 0)
    return Error::from_errno(entries.error(), "directory of hooks " + in_quotes(path));
  sort_few(files, [](const HookFile& a, const HookFile& b) {
    return std::tie(a.stem, a.kind, a.path) < std::tie(b.stem, b.kind, b.path);
  });
  return files;
}

uid_t owner_of_the_node() {
  struct stat status {};
  return ::stat("/", &status) == 0 ? status.st_uid : 0;
}

// --- shell hook ---

namespace {

constexpr std::string_view kEnd = ".sh";

enum class Whose { site, user };

Result<UniqueFd> open_directory(const std::string& path, Whose whose) {
  if (whose == Whose::user)
    return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (::access(path.c_str(), F_OK) != 0) return UniqueFd();
  return open_trusted_directory(path, "directory of hooks", owner_of_the_node());
}

Result<std::vector<std::string>> scripts_in(const std::string& path, Whose whose) {
  std::vector<std::string> names;
  UniqueFd directory = SPC_TRY(open_directory(path, whose));
  if (!directory) return names;
  DirectoryReader files(std::move(directory));
  while (files.next()) {
    const auto name = files.name();
    if (name.size() > kEnd.size() && name.ends_with(kEnd) && name[0] != '.')
      names.emplace_back(name);
  }
  if (files.error() != 0) return Error::from_errno(files.error(), "read " + in_quotes(path));
  std::sort(names.begin(), names.end());
  return names;
}

/// Returns whether the file is executable and not empty.
Result<bool> is_hook(const std::string& path, Whose whose) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0)
    return false;
  if ((status.st_mode & 0111) == 0 || ::access(path.c_str(), X_OK) != 0) return false;
  if (whose == Whose::site) SPC_TRY(open_trusted_file(path, "hook", owner_of_the_node()));
  return true;
}

}  // namespace

Result<std::vector<ShellHook>> find_shell_hooks(const HookContext& context,
                                                const std::string& users) {
  const bool compat = context.flag("enroot_compat", false);
  std::vector<std::pair<std::string, Whose>> directories;
  if (compat) directories.emplace_back("/etc/enroot/hooks.d", Whose::site);
  directories.emplace_back(SPC_HOOKS_DIR, Whose::site);
  if (compat && !users.empty()) directories.emplace_back(users + "/hooks.d", Whose::user);
  const auto off = context.settings_of("hooks_off");
  std::vector<ShellHook> hooks;
  for (const auto& [directory, whose] : directories) {
    for (const std::string& file : SPC_TRY(scripts_in(directory, whose))) {
      const std::string name = file.substr(0, file.size() - kEnd.size());
      if (std::find(off.begin(), off.end(), name) != off.end()) continue;
      const std::string path = directory + "/" + file;
      const bool is_executable = SPC_TRY(is_hook(path, whose));
      hooks.push_back({name, path, is_executable});
    }
  }
  return hooks;
}

}  // namespace spc
