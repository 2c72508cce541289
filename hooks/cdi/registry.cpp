#include "hooks/cdi/registry.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"
#include "hooks/hook.hpp"

namespace spc {

// --- verbs ---

std::vector<std::string> CdiVerb::values_of(std::string_view option) const {
  std::vector<std::string> values;
  for (const auto& [given, value] : options) {
    if (given == option) values.push_back(value);
  }
  return values;
}

std::optional<CdiVerb> verb_of(const CdiHook& hook) {
  const std::string program = hook.path.substr(hook.path.rfind('/') + 1);
  std::size_t verb = 1;
  if (program == "nvidia-ctk") {
    if (hook.args.size() < 2 || hook.args[1] != "hook") return std::nullopt;
    verb = 2;
  } else if (program != "nvidia-cdi-hook") {
    return std::nullopt;
  }
  if (hook.args.size() <= verb) return std::nullopt;
  CdiVerb found;
  found.name = hook.args[verb];
  for (std::size_t i = verb + 1; i < hook.args.size(); ++i) {
    const std::string& word = hook.args[i];
    if (!word.starts_with('-')) continue;
    const std::string option = word.substr(std::min(word.find_first_not_of('-'), word.size()));
    if (const auto equals = option.find('='); equals != std::string::npos) {
      found.options.emplace_back(option.substr(0, equals), option.substr(equals + 1));
    } else if (i + 1 < hook.args.size() && !hook.args[i + 1].starts_with('-')) {
      found.options.emplace_back(option, hook.args[++i]);
    } else {
      found.options.emplace_back(option, "");
    }
  }
  return found;
}

// --- registry ---

namespace {

constexpr std::size_t kMostFiles = 256;   // in a directory
constexpr std::size_t kMostListed = 12;   // devices in a hint
constexpr std::size_t kMostProblems = 3;  // in an error

struct CdiDirectory {
  const char* path;
  unsigned priority;
};
// On most nodes the last is a link to the one before it. Each directory is read only once.
constexpr CdiDirectory kDirectories[] = {{"/etc/cdi", 0}, {"/run/cdi", 1}, {"/var/run/cdi", 1}};

/// Returns the files sorted, so that the result does not depend on the order of the directory.
std::vector<std::string> spec_files(UniqueFd directory) {
  std::vector<std::string> names;
  for (DirectoryReader files(std::move(directory)); files.next();) {
    if (files.name().ends_with(".json") || files.name().ends_with(".yaml"))
      names.emplace_back(files.name());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::ptrdiff_t depth(const CdiMount& mount) {
  const std::string path = normal_path(mount.container_path);
  return std::count(path.begin(), path.end(), '/');
}

using Candidates = std::map<std::string, std::vector<CdiEntry>>;

/// Returns, for each name, the devices of the highest priority.
Candidates candidates_of(const std::vector<CdiFile>& files) {
  Candidates found;
  for (const CdiFile& file : files) {
    for (const CdiDevice& device : file.spec.devices) {
      auto& entries = found[file.spec.kind + "=" + device.name];
      if (!entries.empty() && entries.front().file->priority < file.priority) entries.clear();
      if (entries.empty() || entries.front().file->priority == file.priority)
        entries.push_back({&file, &device});
    }
  }
  return found;
}

std::string listed(const std::vector<CdiEntry>& devices) {
  std::string text;
  for (std::size_t i = 0; i < devices.size() && i < kMostListed; ++i)
    text += (i == 0 ? "" : ", ") + devices[i].name();
  if (devices.size() > kMostListed) text += formatted(" and {} more", devices.size() - kMostListed);
  return text;
}

}  // namespace

CdiRegistry CdiRegistry::read(const std::string& host_root, uid_t owner) {
  CdiRegistry registry;
  for (const auto& [path, priority] : kDirectories)
    registry.read_directory(host_root, path, priority, owner);
  return registry;
}

CdiRegistry CdiRegistry::of(std::vector<CdiFile> files) {
  CdiRegistry registry;
  registry.files_ = std::move(files);
  return registry;
}

void CdiRegistry::read_directory(const std::string& host_root, const std::string& directory,
                                 unsigned priority, uid_t owner) {
  auto opened = open_trusted_directory(host_root + directory, "CDI directory", owner);
  if (!opened) {
    if (opened.error().kind() != ErrorKind::not_found)
      problems_.push_back(opened.error().message());
    return;
  }
  struct stat status {};
  if (::fstat(opened->get(), &status) != 0) return;
  const std::pair identity(status.st_dev, status.st_ino);
  if (std::find(seen_.begin(), seen_.end(), identity) != seen_.end()) return;
  seen_.push_back(identity);
  auto names = spec_files(*std::move(opened));
  if (names.size() > kMostFiles) {
    problems_.push_back(
        formatted("CDI directory {}: has more than {} files", in_quotes(directory), kMostFiles));
    names.resize(kMostFiles);
  }
  for (const std::string& name : names)
    read_file(host_root, directory + "/" + name, priority, owner);
}

void CdiRegistry::read_file(const std::string& host_root, const std::string& path,
                            unsigned priority, uid_t owner) {
  const auto read = [&]() -> Result<CdiSpec> {
    const auto file = SPC_TRY(open_trusted_file(host_root + path, "CDI file", owner));
    const std::string what = "CDI file " + in_quotes(path);
    const auto text = SPC_TRY_DURING(what, spc::read_file(file.get(), kCdiLimits.bytes));
    return SPC_TRY_DURING(what, parse_cdi_spec(text));
  };
  if (auto spec = read()) {
    files_.push_back({path, priority, *std::move(spec)});
  } else {
    problems_.push_back(spec.error().message());
  }
}

std::vector<CdiEntry> CdiRegistry::devices() const {
  std::vector<CdiEntry> devices;
  for (const auto& [name, entries] : candidates_of(files_)) {
    if (entries.size() == 1) devices.push_back(entries.front());
  }
  return devices;
}

std::vector<CdiEntry> CdiRegistry::devices_of(std::string_view kind) const {
  const auto candidates = candidates_of(files_);
  std::vector<CdiEntry> devices;
  for (const CdiFile& file : files_) {
    if (file.spec.kind != kind) continue;
    for (const CdiDevice& device : file.spec.devices) {
      const CdiEntry entry{&file, &device};
      const auto& entries = candidates.at(entry.name());
      if (entries.size() == 1 && entries.front().device == &device) devices.push_back(entry);
    }
  }
  return devices;
}

std::vector<std::string> CdiRegistry::conflicts() const {
  std::vector<std::string> names;
  for (const auto& [name, entries] : candidates_of(files_)) {
    if (entries.size() > 1) names.push_back(name);
  }
  return names;
}

std::vector<std::string> CdiRegistry::conflict(const CdiName& name) const {
  std::vector<std::string> files;
  const auto candidates = candidates_of(files_);
  const auto found = candidates.find(name.str());
  if (found == candidates.end() || found->second.size() < 2) return files;
  for (const CdiEntry& entry : found->second) files.push_back(entry.file->path);
  return files;
}

Result<std::vector<CdiEntry>> CdiRegistry::find(const CdiName& name) const {
  const std::string what = "device " + in_quotes(name.str());
  if (const auto files = conflict(name); !files.empty()) {
    std::string list;
    for (const std::string& file : files) list += (list.empty() ? "" : " and ") + in_quotes(file);
    return Error(ErrorKind::invalid, formatted("{}: {} both describe it", what, list))
        .hint("remove one of these CDI files");
  }
  const auto of_kind = devices_of(name.kind);
  for (const CdiEntry& entry : of_kind) {
    if (entry.device->name == name.name) return std::vector{entry};
  }
  if (name.name == "all" && !of_kind.empty()) return of_kind;
  // The device may be in a file that was skipped.
  std::string why = what + ": not in any CDI file of this node";
  for (std::size_t i = 0; i < problems_.size() && i < kMostProblems; ++i)
    why += "; " + problems_[i];
  auto error = Error(ErrorKind::not_found, std::move(why));
  const auto there = of_kind.empty() ? devices() : of_kind;
  if (!there.empty()) return std::move(error).hint("available: " + listed(there));
  return std::move(error).hint(
      "no CDI files in /etc/cdi and /run/cdi; create them with the vendor's tool, such as "
      "nvidia-ctk cdi generate");
}

CdiEdits cdi_edits_of(const std::vector<CdiEntry>& devices) {
  CdiEdits edits;
  std::set<const CdiFile*> files;
  std::set<const CdiDevice*> done;
  for (const CdiEntry& entry : devices) {
    if (!done.insert(entry.device).second) continue;
    if (files.insert(entry.file).second) edits.append(entry.file->spec.edits);
    edits.append(entry.device->edits);
  }
  sort_few(edits.mounts, [](const CdiMount& a, const CdiMount& b) { return depth(a) < depth(b); });
  return edits;
}

}  // namespace spc
