#include "convert/facts.hpp"

#include <algorithm>
#include <map>

#include "base/format.hpp"
#include "base/text.hpp"

namespace spc {

namespace {

constexpr std::size_t kMaxText = 64 << 20;

/// Returns `VALUE` of a line `KEY=VALUE`, without quotes.
std::string line_value(std::string_view text, const std::string& key) {
  while (!text.empty()) {
    const std::string_view line = next_part(text, '\n');
    if (line.starts_with(key + "=")) return std::string(unquoted(line.substr(key.size() + 1)));
  }
  return {};
}

/// Returns whether a parent directory of `path` holds no facts.
bool is_passed_over(std::string_view path) {
  for (std::size_t begin = 0, end = 0; (end = path.find('/', begin)) != std::string_view::npos;
       begin = end + 1) {
    if (holds_no_facts(path.substr(begin, end - begin))) return true;
  }
  return false;
}

bool is_version_part(char c) { return (c >= '0' && c <= '9') || c == '.'; }

/// Returns the version that follows `mark` in a program: digits and dots.
std::string version_after(const std::string& text, std::string_view mark) {
  for (auto at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
    std::size_t end = at + mark.size();
    while (end < text.size() && is_version_part(text[end])) ++end;
    std::string version = text.substr(at + mark.size(), end - at - mark.size());
    while (!version.empty() && version.back() == '.') version.pop_back();
    if (version.find('.') != std::string::npos) return version;
  }
  return {};
}

/// Returns the versions of packages in the databases of dpkg and of Alpine's apk.
std::map<std::string, std::string> packages_of(SeenFiles& files) {
  std::map<std::string, std::string> packages;
  const auto read = [&](std::string_view text, std::string_view name_key,
                        std::string_view version_key) {
    std::string name;
    while (!text.empty()) {
      const std::string_view line = next_part(text, '\n');
      if (line.starts_with(name_key)) name = line.substr(name_key.size());
      if (line.starts_with(version_key)) packages[name] = line.substr(version_key.size());
    }
  };
  read(files.text("var/lib/dpkg/status", kMaxText), "Package: ", "Version: ");
  read(files.text("lib/apk/db/installed", kMaxText), "P:", "V:");
  return packages;
}

/// Returns the upstream part of a package's version: `1:4.1.4-3+b1` → `4.1.4`.
std::string upstream(const std::string& version) {
  const auto colon = version.find(':');
  std::string text = colon == std::string::npos ? version : version.substr(colon + 1);
  std::size_t end = 0;
  while (end < text.size() && is_version_part(text[end])) ++end;
  return text.substr(0, end);
}

/// Paths of libraries by their name up to `.so`, the longest version of each.
class Libraries {
 public:
  void note(const std::string& path) {
    const std::string name = path.substr(path.rfind('/') + 1);
    const auto so = name.find(".so");
    if (so == std::string::npos || !name.starts_with("lib") ||
        (so + 3 < name.size() && name[so + 3] != '.'))
      return;
    std::string& known = paths_[name.substr(0, so)];
    if (known.empty() || path.size() - path.rfind('/') > known.size() - known.rfind('/'))
      known = path;
  }
  [[nodiscard]] std::string path(const std::string& name) const {
    const auto found = paths_.find(name);
    return found == paths_.end() ? std::string() : found->second;
  }
  /// Returns the version, `2.19.3` for `libnccl.so.2.19.3`, or `?` for a library without one.
  [[nodiscard]] std::string version(const std::string& name) const {
    const std::string found = path(name);
    if (found.empty()) return {};
    const auto so = found.rfind(".so.");
    return so == std::string::npos ? "?" : found.substr(so + 4);
  }

 private:
  std::map<std::string, std::string> paths_;
};

std::string first_package(const std::map<std::string, std::string>& packages,
                          std::initializer_list<const char*> beginnings) {
  for (const char* beginning : beginnings) {
    const auto found = packages.lower_bound(beginning);
    if (found != packages.end() && found->first.starts_with(beginning))
      return upstream(found->second);
  }
  return {};
}

std::string libc_of(SeenFiles& files, const Libraries& libraries, const std::string& musl) {
  if (!musl.empty()) return "musl";
  const std::string path = libraries.path("libc");
  if (path.empty()) return {};
  const std::string version = version_after(files.text(path, kMaxText), "release version ");
  return version.empty() ? "glibc" : "glibc " + version;
}

std::string mpi_of(SeenFiles& files, const Libraries& libraries,
                   const std::map<std::string, std::string>& packages) {
  const std::string path = libraries.path("libmpi");
  if (const auto version = first_package(packages, {"libopenmpi3", "openmpi-bin", "openmpi"});
      !version.empty()) {
    return "Open MPI " + version;
  }
  if (path.empty())
    return libraries.path("libmpich").empty()
               ? ""
               : "MPICH " + first_package(packages, {"libmpich12", "mpich"});
  const std::string text = files.text(path, kMaxText);
  if (const auto version = version_after(text, "Open MPI v"); !version.empty())
    return "Open MPI " + version;
  if (const auto version = version_after(text, "Intel(R) MPI Library "); !version.empty())
    return "Intel MPI " + version;
  if (text.find("MPICH") != std::string::npos)
    return "MPICH " + version_after(text, "MPICH Version:\t");
  return "libmpi.so." + libraries.version("libmpi");
}

/// Returns the srun option by which ranks of this MPI find each other, as in the man page under
/// MPI.
std::string srun_option_for(const std::string& mpi, bool has_pmix) {
  if (mpi.starts_with("Open MPI")) return "--mpi=pmix";
  if (mpi.starts_with("MPICH") || mpi.starts_with("Intel MPI"))
    return has_pmix ? "--mpi=pmi2 or pmix" : "--mpi=pmi2";
  return {};
}

std::string ucx_of(SeenFiles& files, const Libraries& libraries, const std::string& pkgconfig) {
  if (libraries.path("libucp").empty()) return {};
  const std::string text = pkgconfig.empty() ? "" : files.text(pkgconfig, 1 << 20);
  const std::string version = version_after(text, "Version: ");
  return version.empty() ? libraries.version("libucp") : version;
}

/// A Python package, identified by its metadata directory, such as `torch-2.3.0+cu121.dist-info`.
struct Framework {
  std::string_view package;
  std::string_view name;
};
constexpr Framework kFrameworks[] = {
    {"torch", "PyTorch"},       {"tensorflow", "TensorFlow"}, {"jax", "JAX"},
    {"jaxlib", "jaxlib"},       {"horovod", "Horovod"},       {"deepspeed", "DeepSpeed"},
    {"lightning", "Lightning"}, {"mpi4py", "mpi4py"}};

bool is_metadata(std::string_view directory) {
  return directory.ends_with(".dist-info") || directory.ends_with(".egg-info");
}

void note_framework(std::map<std::string, std::string>& found, std::string_view directory) {
  const std::size_t dash = directory.find('-');
  if (dash == std::string_view::npos || !is_metadata(directory)) return;
  const std::string_view version = directory.substr(dash + 1, directory.rfind('.') - dash - 1);
  for (const Framework& framework : kFrameworks) {
    if (directory.substr(0, dash) == framework.package)
      found[std::string(framework.name)] = version.substr(0, version.find("-py"));
  }
}

std::string listed(const std::map<std::string, std::string>& frameworks) {
  std::string text;
  for (const auto& [name, version] : frameworks)
    text += (text.empty() ? "" : ", ") + name + " " + version;
  return text;
}

/// Returns the oldest driver for programs of this CUDA, by minor version compatibility: NVIDIA's
/// CUDA Compatibility, table 1.
std::string driver_for(const std::string& cuda) {
  if (cuda.starts_with("13.")) return "580 or newer";
  if (cuda.starts_with("12.")) return "525.60.13 or newer";
  if (cuda.starts_with("11.")) return "450.80.02 or newer";
  return {};
}

constexpr std::size_t kMostOfAFact = 300;
constexpr std::size_t kMostLabels = 16 << 10;

/// Order of facts in all outputs.
constexpr std::string_view kNames[] = {"os",     "libc",       "cuda",  "cudnn", "mpi",
                                       "pmix",   "srun",       "ucx",   "nccl",  "rocm",
                                       "python", "frameworks", "driver"};

}  // namespace

std::vector<Fact> facts_from(std::map<std::string, std::string> known) {
  std::vector<Fact> facts;
  for (const std::string_view name : kNames)
    facts.push_back({std::string(name), known[std::string(name)]});
  return facts;
}

bool holds_no_facts(std::string_view directory) {
  constexpr std::string_view kNone[] = {"include",     "share", "doc",  "man",         "locale",
                                        "__pycache__", "tests", "test", "node_modules"};
  return is_metadata(directory) || std::ranges::find(kNone, directory) != std::end(kNone);
}

Result<FactSheet> facts_of(SeenFiles& files) {
  Libraries libraries;
  std::string musl, ucx_pkgconfig, python;
  std::map<std::string, std::string> frameworks;

  // Find the interesting paths in one pass over the tree.
  SPC_TRY(files.walk([&](const std::string& path, bool is_directory) {
    if (is_passed_over(path)) return;
    const std::string_view name = std::string_view(path).substr(path.rfind('/') + 1);
    if (is_directory) {
      note_framework(frameworks, name);
      return;
    }
    libraries.note(path);
    if (name.starts_with("ld-musl-")) musl = path;
    if (name == "ucx.pc") ucx_pkgconfig = path;
    if (name.starts_with("python3.") && path.find("bin/") != std::string::npos &&
        name.size() <= 10 &&
        name.find_first_not_of("python3.0123456789") == std::string_view::npos) {
      python = std::max(python, std::string(name.substr(6)));
    }
  }));

  // A package's version is more exact than that in a library's name.
  const auto packages = packages_of(files);
  const auto either = [&](const std::string& package, const char* library) {
    return package.empty() ? libraries.version(library) : package;
  };
  std::string release = files.text("etc/os-release", 64 << 10);
  if (release.empty()) release = files.text("usr/lib/os-release", 64 << 10);
  const std::string mpi = mpi_of(files, libraries, packages);
  const std::string pmix = either(first_package(packages, {"libpmix2", "libpmix"}), "libpmix");

  FactSheet sheet;
  sheet.facts = facts_from({
      {"os", line_value(release, "PRETTY_NAME")},
      {"libc", libc_of(files, libraries, musl)},
      {"cuda", libraries.version("libcudart")},
      {"cudnn", libraries.version("libcudnn")},
      {"mpi", mpi},
      {"pmix", pmix},
      {"srun", srun_option_for(mpi, !pmix.empty())},
      {"ucx", ucx_pkgconfig.empty() ? either(first_package(packages, {"libucx0", "ucx"}), "libucp")
                                    : ucx_of(files, libraries, ucx_pkgconfig)},
      {"nccl", either(first_package(packages, {"libnccl2"}), "libnccl")},
      {"rocm", std::string(trimmed(files.text("opt/rocm/.info/version", 100)))},
      {"python", python},
      {"frameworks", listed(frameworks)},
      {"driver", driver_for(libraries.version("libcudart"))},
  });
  sheet.labels = files.text(".singularity.d/labels.json", kMostLabels);
  return sheet;
}

std::vector<Fact> facts_of_variables(const std::vector<std::string>& variables) {
  const auto value = [&](std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) {
      for (const std::string& one : variables) {
        if (one.starts_with(name) && one.size() > name.size() && one[name.size()] == '=')
          return one.substr(name.size() + 1);
      }
    }
    return std::string();
  };
  const auto named = [](const char* what, const std::string& version) {
    return version.empty() ? version : what + version;
  };
  const std::string cuda = value({"CUDA_VERSION"});
  const std::string mpi = named("Open MPI ", value({"OPENMPI_VERSION", "OMPI_VERSION"}));
  return facts_from(
      {{"cuda", cuda},
       {"cudnn", value({"CUDNN_VERSION", "NV_CUDNN_VERSION"})},
       {"nccl", value({"NCCL_VERSION", "NV_LIBNCCL_PACKAGE_VERSION"})},
       {"mpi", mpi},
       {"srun", srun_option_for(mpi, false)},
       {"ucx", value({"OPENUCX_VERSION", "UCX_VERSION"})},
       {"rocm", value({"ROCM_VERSION"})},
       {"python", value({"PYTHON_VERSION"})},
       {"frameworks", named("PyTorch ", value({"PYTORCH_VERSION", "PYTORCH_BUILD_VERSION"}))},
       {"driver", driver_for(cuda)}});
}

std::string fact_records(const FactSheet& sheet) {
  std::string records;
  for (const Fact& fact : sheet.facts)
    add_record(records, "fact", fact.what + "=" + fact.value.substr(0, kMostOfAFact));
  if (!sheet.labels.empty())
    add_record(records, "labels", sheet.labels.substr(0, sheet.labels.find('\0')));
  return records;
}

std::optional<FactSheet> facts_in(std::string_view records) {
  std::map<std::string, std::string> known;
  FactSheet sheet;
  for (Records one(records); one.next();) {
    if (one.key() == "labels") sheet.labels = one.value().substr(0, kMostLabels);
    if (one.key() != "fact") continue;
    const std::string_view text = one.value();
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      known[std::string(text.substr(0, equals))] = printable(text.substr(equals + 1, kMostOfAFact));
  }
  if (known.empty()) return std::nullopt;
  sheet.facts = facts_from(std::move(known));
  return sheet;
}

}  // namespace spc
