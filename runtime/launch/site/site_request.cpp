// The site's part of a request: mounts, restrictions, signature rules, importer and defaults.

#include "launch/site/site_request.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <vector>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/process/own_program.hpp"
#include "base/process/supervised.hpp"
#include "base/socket.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "protocol/import.hpp"
#include "protocol/policy.hpp"
#include "protocol/task.hpp"
#include "protocol/user_source.hpp"
#include "reference/location.hpp"
#include "task/entering/enter.hpp"
#include "task/user_identity.hpp"

namespace spc {

// --- site mounts ---

namespace {

Result<void> add(std::vector<MountSpec>& mounts, std::string_view text, const std::string& origin,
                 bool by_site) {
  auto parsed = parse_mounts(text);
  if (!parsed && by_site) return for_administrator(std::move(parsed).error().during(origin));
  for (MountSpec& mount : SPC_TRY_DURING(origin, std::move(parsed))) {
    if (!by_site) SPC_TRY_DURING(origin, refuse_kernel_views(mount));
    mount.origin = origin;
    mount.by_site = by_site;
    mounts.push_back(std::move(mount));
  }
  return {};
}

}  // namespace

Result<std::vector<MountSpec>> site_mounts(const SitePolicy& site, UsersMounts users) {
  std::vector<MountSpec> mounts;
  for (const auto* records : {&site.enroot_mounts, &site.enroot_mounts_of_user}) {
    if (users == UsersMounts::no && records == &site.enroot_mounts_of_user) continue;
    for (const std::string& record : *records) {
      const auto tab = record.find('\t');
      SPC_TRY(add(mounts, std::string_view(record).substr(tab + 1), record.substr(0, tab),
                  records == &site.enroot_mounts));
    }
  }
  for (const std::string& text : site.mounts)
    SPC_TRY(add(mounts, text, "config.toml: mounts", true));
  return mounts;
}

// --- remote file ---

namespace {

// No limit of its own: the step's time limit ends it before.
constexpr std::chrono::hours kWithinStep{24 * 7};

std::string cache_of(const std::map<std::string, std::string>& environment) {
  const auto cache = environment.find("XDG_CACHE_HOME");
  const UserPaths paths = UserPaths::of(environment, UserPaths::Variables::seen);
  const auto meant = paths.resolve(cache == environment.end() ? "" : cache->second);
  if (meant && meant->starts_with('/')) return *meant;
  const auto home = environment.find("HOME");
  const bool is_set = home != environment.end() && home->second.starts_with('/');
  return (is_set ? home->second : UserIdentity::of_this_process().home) + "/.cache";
}

Result<std::string> path_in(const ProcessEnd& end) {
  FetchAnswer answer;
  if (end.kind != ProcessEnd::Kind::exited || end.output.size() != sizeof answer) {
    return Error(ErrorKind::unavailable, "user-source exited unexpectedly");
  }
  std::memcpy(&answer, end.output.data(), sizeof answer);
  if (answer.error.is_set()) return answer.error.error();
  return answer.path.str();
}

}  // namespace

Result<std::string> bring_remote_file(const RemoteFileRequest& wanted,
                                      const std::map<std::string, std::string>& environment,
                                      Log& log) {
  const std::string program_path = own_program("user-source");
  std::string request;
  add_record(request, "image", wanted.image);
  add_record(request, "pull", name_of(wanted.pull));
  add_record(request, "since", wanted.since ? std::to_string(*wanted.since) : "");
  add_record(request, "cache", cache_of(environment));
  add_record(request, "stored", wanted.stored);
  Program program{.path = program_path,
                  .arguments = {program_path, kFetch},
                  .environment = std::vector<std::string>(),
                  .descriptors = {}};
  for (const auto& [name, value] : environment) program.environment->push_back(name + "=" + value);
  program.prepare = [] { return stay_outside().has_value(); };
  const auto tell = [&](std::string_view line) {
    const bool warns = line.starts_with(kFetchWarning);
    if (warns) line.remove_prefix(std::string_view(kFetchWarning).size());
    log.write(warns ? LogLevel::warning : LogLevel::info, printable(line));
  };
  const std::string image = without_secrets(wanted.image);
  const auto end =
      SPC_TRY_OR(.during_pull(image),
                 run_supervised(std::move(program), request,
                                {.time = kWithinStep, .output = sizeof(FetchAnswer)}, tell));
  return SPC_TRY_OR(.during_pull(image), path_in(end));
}

// --- trust rules ---

namespace {

constexpr char kStep[] = "--container-image";

Result<void> ask(const char* transports, const std::string& path, const SitePolicy& site,
                 const std::string& reference) {
  auto [ours, theirs] = SPC_TRY(socket_pair());
  const std::string import = own_program("import");
  Program program{
      .path = import,
      .arguments = {import, "trust", site.signature_policy, path, reference, transports},
      .environment = std::vector<std::string>(),
      .descriptors = {{theirs.get(), kImportSocket}}};
  program.prepare = [] { return give_up_privilege().has_value(); };
  auto child = SPC_TRY_DURING(kStep, Child::start(program));
  theirs.reset();
  TrustAnswer answer;
  if (!receive_struct(ours.get(), answer)) {
    return Error(ErrorKind::unavailable,
                 "--container-image: read the signature policy: import exited unexpectedly");
  }
  return answer.error.is_set() ? Result<void>(answer.error.error().during(kStep)) : Result<void>();
}

}  // namespace

Result<void> check_trust(const ImageLocation& image, const SitePolicy& site) {
  using Kind = ImageLocation::Kind;
  if (site.signature_policy.empty()) return {};
  switch (image.kind) {
    case Kind::oci_layout: return ask("oci", image.path, site, image.reference);
    case Kind::oci_archive: return ask("oci-archive", image.path, site, image.reference);
    case Kind::docker_archive: return ask("docker-archive", image.path, site, image.reference);
    case Kind::docker_daemon: return ask("docker-daemon", "", site, "");
    case Kind::podman: return ask("containers-storage", "", site, "");
    case Kind::registry:
    case Kind::remote_file:
    case Kind::path: break;
  }
  return {};
}

Result<void> check_opened_trust(int file, const std::string& typed, const char* transports,
                                const SitePolicy& site) {
  if (site.signature_policy.empty()) return {};
  return ask(transports, SPC_TRY(real_path(file, typed)), site, "");
}

Result<void> check_stored_trust(const ImageLocation& image, const SitePolicy& site) {
  if (site.signature_policy.empty() || image.kind != ImageLocation::Kind::path)
    return check_trust(image, site);
  // Other files are checked again when opened.
  return ask(kArchiveTransports, image.path, site, "");
}

Result<void> check_importer(const SitePolicy& site) {
  if (site.signature_policy.empty()) return {};
  return Error(ErrorKind::refused,
               "this site's signature policy cannot be kept with an external importer")
      .hint("ask the administrator to remove importer or signature_policy from config.toml");
}

// --- policy rules ---

namespace {

std::string listed(const std::vector<std::string>& directories) {
  std::string text;
  for (const std::string& directory : directories)
    text += (text.empty() ? "" : ", ") + in_quotes(directory);
  return text;
}

Error outside(const std::string& typed, const std::string& where,
              const std::vector<std::string>& allowed) {
  return Error(ErrorKind::refused,
               formatted("--container-image: {}{}: this site allows image files only in {}",
                         in_quotes(typed), where, listed(allowed)))
      .hint("use a registry image, or ask the administrator about allowed_paths in config.toml");
}

Result<void> check_real_path(const std::string& path, const std::string& typed,
                             const std::vector<std::string>& allowed) {
  const auto fits = [&](const std::string& directory) { return lies_below(path, directory); };
  if (std::any_of(allowed.begin(), allowed.end(), fits)) return {};
  return outside(typed, path == typed ? "" : ", which is " + in_quotes(path), allowed);
}

/// Returns whether one of the names is in the list, or the list is empty.
bool is_meant(const std::vector<std::string>& listed, const std::vector<std::string>& names) {
  return listed.empty() || std::find_first_of(listed.begin(), listed.end(), names.begin(),
                                              names.end()) != listed.end();
}

/// Returns names and IDs from lines of a group file.
std::vector<std::string> names_of(const std::vector<std::string>& group_entries) {
  std::vector<std::string> names;
  for (const std::string& entry : group_entries) {  // NAME:x:GID:
    const auto first = entry.find(':');
    const auto second = entry.find(':', first + 1);
    names.push_back(entry.substr(0, first));
    names.push_back(entry.substr(second + 1, entry.find(':', second + 1) - second - 1));
  }
  return names;
}

}  // namespace

Result<void> check_image(const ImageLocation& image, const SitePolicy& site,
                         const std::map<std::string, std::string>& job) {
  const bool is_named =
      image.kind == ImageLocation::Kind::registry || image.kind == ImageLocation::Kind::remote_file;
  if (site.allowed_images.empty() || !is_named) return {};
  const auto user = UserIdentity::of_this_process();
  const auto groups = names_of(user.group_entries);
  const auto partition = job.find("SLURM_JOB_PARTITION");
  const std::string repository = image.name.registry + "/" + image.name.repository;
  for (const std::string& text : site.allowed_images) {
    const auto rule = SPC_TRY_DURING("allowed_images in config.toml", ImageRule::parse(text));
    if (rule.fits(repository) && is_meant(rule.users, {user.name, std::to_string(user.uid)}) &&
        is_meant(rule.groups, groups) &&
        is_meant(rule.partitions, {partition == job.end() ? "" : partition->second})) {
      return {};
    }
  }
  return Error(ErrorKind::refused,
               formatted(
                   "--container-image: {}: not allowed by this site for this user{}",
                   in_quotes(image.canonical()),
                   partition == job.end() ? "" : " in partition " + in_quotes(partition->second)))
      .hint("ask the administrator about allowed_images in config.toml");
}

Result<std::string> real_path(int file, const std::string& typed) {
  char path[PATH_MAX];
  const ssize_t size =
      ::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path, sizeof path);
  if (size <= 0 || size == sizeof path)
    return Error::from_errno(size <= 0 ? errno : ENAMETOOLONG, "look for " + in_quotes(typed));
  return std::string(path, static_cast<std::size_t>(size));
}

bool lies_below(std::string_view path, std::string_view directory) {
  while (directory.ends_with('/')) directory.remove_suffix(1);
  return path.starts_with(directory) &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

Result<void> check_place(ImageLocation& image, const SitePolicy& site) {
  using Kind = ImageLocation::Kind;
  const auto& allowed = site.allowed_paths;
  if (image.kind == Kind::registry || (allowed.empty() && site.signature_policy.empty())) return {};
  if (image.kind == Kind::docker_daemon || image.kind == Kind::podman ||
      image.kind == Kind::remote_file) {
    return allowed.empty() ? Result<void>() : outside(image.canonical(), "", allowed);
  }
  const UniqueFd place(::open(image.path.c_str(), O_PATH | O_CLOEXEC));
  if (!place) {
    return Error::from_errno(errno, "--container-image: open image " + in_quotes(image.path))
        .hint("it must exist on every node of the step and is opened with the user's permissions");
  }
  const std::string real = SPC_TRY(real_path(place.get(), image.path));
  if (!allowed.empty()) SPC_TRY(check_real_path(real, image.path, allowed));
  if (image.kind != Kind::path && real.find(':') != std::string::npos) {
    return Error(ErrorKind::invalid,
                 formatted("--container-image: {} is {}: a path must not contain a colon",
                           in_quotes(image.path), in_quotes(real)));
  }
  image.path = real;
  return {};
}

Result<void> check_opened_place(int file, const std::string& typed, const SitePolicy& site) {
  const auto& allowed = site.allowed_paths;
  if (allowed.empty()) return {};
  return check_real_path(SPC_TRY(real_path(file, typed)), typed, allowed);
}

Result<void> check_mount_source(int source, const std::string& typed,
                                const std::vector<std::string>& mounts_off) {
  if (mounts_off.empty()) return {};
  const std::string real = SPC_TRY(real_path(source, typed));
  for (const std::string& kept : mounts_off) {
    if (!lies_below(real, kept) && !lies_below(kept, real)) continue;
    return Error(ErrorKind::refused, formatted("mount {}: this site does not allow mounts of {}",
                                               in_quotes(typed), in_quotes(kept)))
        .hint("ask the administrator about mounts_off in config.toml");
  }
  return {};
}

// --- site importer ---

namespace {

constexpr std::size_t kMostOutput = 1 << 20;
constexpr int kNotExecuted = 127;

Result<UniqueFd> memory(const char* name) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  if (!file) return Error::from_errno(errno, "make room for the importer's output");
  return file;
}

std::string content(int file) {
  std::string text(kMostOutput, '\0');
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

std::string outcome(const ExitStatus& status) {
  if (status.signalled()) return "was killed by signal " + std::to_string(status.signal());
  if (status.code() == kNotExecuted) return "cannot be executed (exit code 127)";
  return "failed with exit code " + std::to_string(status.code());
}

/// Prints the last lines, which contain the reason.
void show(std::string_view text, Log& log) {
  constexpr std::size_t kLines = 20;
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::string_view line = next_part(text, '\n');
    if (!line.empty()) lines.push_back(line);
  }
  for (std::size_t i = lines.size() > kLines ? lines.size() - kLines : 0; i < lines.size(); ++i) {
    log.write(LogLevel::info, "importer: " + printable(lines[i].substr(0, 1000)));
  }
}

}  // namespace

bool SiteImporter::brings(const ImageLocation& image) const {
  using Kind = ImageLocation::Kind;
  if (program_.empty()) return false;
  return image.kind == Kind::registry || image.kind == Kind::docker_daemon ||
         image.kind == Kind::podman;
}

Result<std::string> SiteImporter::get(const std::string& image, Log& log) {
  const std::string uri = image.find("://") == std::string::npos ? "docker://" + image : image;
  // Each user in turn executes the program, so only root may control it.
  SPC_TRY(open_trusted_file(program_, "importer"));
  asked_ = true;
  const std::string printed = SPC_TRY_OR(.during_pull(image), run("get", uri.c_str(), &log));
  std::string path = printed.substr(0, printed.find('\n'));
  if (path.starts_with('/')) return path;
  return Error(ErrorKind::invalid,
               formatted("importer {} printed {}, which is not an absolute path",
                         in_quotes(program_), in_quotes(path)))
      .during_pull(image)
      .hint("ask the administrator to correct the site's importer");
}

void SiteImporter::release() {
  if (!asked_) return;
  asked_ = false;
  static_cast<void>(run("release", nullptr, nullptr));
}

Result<std::string> SiteImporter::run(const char* verb, const char* argument, Log* log) {
  const UniqueFd out = SPC_TRY(memory("spank-container importer"));
  const UniqueFd messages = SPC_TRY(memory("spank-container importer log"));
  // Its output goes to memory: a background process holding a pipe open must not block us.
  Program program{.path = program_,
                  .arguments = {program_, verb},
                  .environment = std::vector<std::string>(),
                  .descriptors = {{out.get(), 1}, {messages.get(), 2}},
                  .death_signal = SIGTERM};
  if (argument != nullptr) program.arguments.emplace_back(argument);
  for (const auto& [name, value] : *environment_)
    program.environment->push_back(name + "=" + value);
  if (!environment_->contains("PYXIS_RUNTIME_PATH"))
    program.environment->emplace_back("PYXIS_RUNTIME_PATH=/tmp");
  program.prepare = [] {
    if (!stay_outside()) return false;
    ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return true;
  };
  auto child = Child::start(program);
  const ExitStatus status = child ? child->wait() : ExitStatus(kNotExecuted << 8);
  if (status.success()) return content(out.get());
  if (log != nullptr) show(content(messages.get()), *log);
  return Error(ErrorKind::system, formatted("importer {} {}", in_quotes(program_), outcome(status)))
      .hint("its output is above");
}

// --- site request ---

namespace {

std::uint32_t site_namespaces(const SitePolicy& site) {
  std::uint32_t bits = 0;
  for (const std::string& name : site.unshare) {
    for (const NamespaceKind& kind : kNamespaceKinds)
      bits |= name == kind.name ? std::uint32_t{kind.bit} : 0U;
  }
  return bits;
}

/// Returns whether an option of the job overrides enroot's variables and files.
bool is_overridden(const LaunchRequest& request, std::string_view option) {
  if (option == "container-writable" || option == "container-readonly")
    return request.writable.has_value();
  if (option == "container-remap-root") return request.remap_root.has_value();
  if (option == "container-mount-home") return request.contain || request.mount_home.has_value();
  return option == "container-mounts" && request.contain;
}

/// Checks the user's enroot settings like options.
Result<void> check_options_of_user(const LaunchRequest& request, const SitePolicy& site) {
  for (const auto& [option, origin] : site.options_of_user) {
    if (!is_overridden(request, option))
      SPC_TRY_DURING(origin, check_features({option}, site.features_off));
  }
  return {};
}

}  // namespace

Result<LaunchRequest> fit_to_site(LaunchRequest request, const PolicyRecord& policy,
                                  const SitePolicy& site) {
  SPC_TRY(check_features(request.features, site.features_off));
  SPC_TRY(check_options_of_user(request, site));
  auto mounts = SPC_TRY(site_mounts(site, request.contain ? UsersMounts::no : UsersMounts::yes));
  std::move(request.mounts.begin(), request.mounts.end(), std::back_inserter(mounts));
  request.mounts = std::move(mounts);
  if (request.mounts.size() > kMaxMounts) return too_many_mounts().during(MountSpec().origin);
  if (!request.writable) request.writable = site.writable.value_or(policy.writable != 0);
  if (!request.slurm) request.slurm = site.slurm;
  // With remapped root, Slurm's commands would act as root, while munge reports the user.
  if (!request.remap_root) request.remap_root = !*request.slurm && site.remap_root;
  request.namespaces |= site_namespaces(site);
  request.max_tmpfs_size = site.max_tmpfs_size;
  request.mounts_off = site.mounts_off;
  return request;
}

}  // namespace spc
