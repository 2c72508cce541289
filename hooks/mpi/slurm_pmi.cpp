#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/format.hpp"
#include "base/process/child.hpp"
#include "hooks/hook.hpp"
#include "hooks/libraries/libraries.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/loader/loader.hpp"
#include "hooks/mpi/mpi_hooks.hpp"
#include "hooks/step/allocation.hpp"

namespace spc {

// --- node pmi ---

namespace {

constexpr char kLibrary[] = "libpmi2.so.0";
constexpr char kInside[] = "/usr/lib/spank-container/pmi/libpmi2.so.0";
constexpr char kRememberedPmi[] = "libpmi2";
constexpr char kVariable[] = "I_MPI_PMI_LIBRARY";

/// Returns whether the image's MVAPICH2 (--with-pm=slurm --with-pmi=pmi2) or MPICH is linked with
/// libpmi2: without the library, the image's programs do not start.
[[gnu::cold]] bool is_linked_with_pmi2(const HookContext& context) {
  ImageLibraries libraries(context);
  const ElfFile* mpi = libraries.library("libmpi.so.12", own_machine());
  return mpi != nullptr && std::ranges::find(mpi->needed, kLibrary) != mpi->needed.end();
}

/// Returns the MPI whose libpmi2.so.0 is missing in the image; empty if none is.
std::string mpi_without_pmi2(const HookContext& context) {
  if (image_has_library(context, kLibrary)) return {};
  if (ImageMpi::has_intel(context)) return "Intel MPI";
  const ImageMpi mpi = ImageMpi::of(context);
  if (mpi.mpich && is_linked_with_pmi2(context)) return "MVAPICH2 or MPICH";
  return mpi.open_mpi && !mpi.open_mpi_5 && ImageMpi::open_mpi_has_pmi2(context) ? "Open MPI" : "";
}

/// Returns the library's path from the job's environment, or a path where Slurm installs it.
std::string pmi2_of_node(const HookContext& context) {
  auto directories = default_library_directories(own_machine());
  directories.insert(directories.end(),
                     {"/opt/slurm/lib64", "/opt/slurm/lib", "/usr/local/lib64", "/usr/local/lib"});
  std::vector<std::string> paths;
  if (const std::string* said = context.of_job(kVariable);
      said != nullptr && said->find("/libpmi2.so") != std::string::npos)
    paths.push_back(*said);
  for (const std::string& directory : directories) paths.push_back(directory + "/" + kLibrary);
  const auto is_there = [&](const std::string& path) {
    return ::access((context.host_root + path).c_str(), R_OK) == 0;
  };
  const auto found = std::ranges::find_if(paths, is_there);
  return found == paths.end() ? std::string() : *found;
}

}  // namespace

void offer_pmi2(const HookContext& context, Edits& edits) {
  const std::string* type = context.of_job("SLURM_MPI_TYPE");
  if (type == nullptr || *type != "pmi2") return;
  const std::string path = pmi2_of_node(context);
  if (path.empty()) return;
  const auto library = HostLibrary::read(context.host_root, path);
  if (!library) return;
  edits.remembered[kRememberedPmi] = library->serialize();
  edits.mounts.push_back({.source = library->source, .target = kInside, .optional = true});
}

void choose_pmi2(const HookContext& context, Edits& edits) {
  const std::string* type = context.of_job("SLURM_MPI_TYPE");
  if (type == nullptr || *type != "pmi2") return;
  const auto remembered = edits.remembered.find(kRememberedPmi);
  const auto drop = [&] {
    for (MountEdit& mount : edits.mounts) {
      if (mount.target == kInside) mount.target.clear();
    }
  };
  const std::string mpi = mpi_without_pmi2(context);
  if (mpi.empty()) return drop();
  if (remembered == edits.remembered.end()) {
    edits.warnings.push_back(formatted(
        "the image has {}, which finds Slurm by libpmi2.so.0: neither the image nor the node has it"
        " (hint: install Slurm's libpmi2 on the node)",
        mpi));
    return;
  }
  const std::vector<HostLibrary> libraries{HostLibrary::parse(remembered->second)};
  LibraryFit fit(context, "the node's Slurm", false);
  if (const auto choice = fit.choose(libraries); !choice.left_out.empty()) {
    edits.warnings.push_back(
        printable(formatted("{} cannot find Slurm: {} (hint: use an image of a newer distribution)",
                            mpi, choice.left_out.front().second.text)));
    return drop();
  }
  edits.libraries.push_back(
      {.soname = kLibrary, .path = kInside, .before = false, .machine = libraries.front().machine});
  edits.notes.push_back(formatted("the node's {} is added for {}", libraries.front().source, mpi));
}

void name_pmi2(const HookContext& context, Edits& edits) {
  if (!ImageMpi::has_intel(context) || !context.open_in_image(kInside, O_PATH)) return;
  edits.environment.defaults[kVariable] = kInside;
}

// --- slurm pmi ---

namespace {

constexpr char kMungeDirectory[] = "/run/munge";
constexpr char kMungeSocket[] = "/run/munge/munge.socket.2";

std::string of_job(const HookContext& context, std::string_view name) {
  const std::string* value = context.of_job(name);
  return value == nullptr ? std::string() : *value;
}

bool is_pmix(const HookContext& context) {
  return of_job(context, "SLURM_MPI_TYPE").starts_with("pmix") ||
         context.of_job("PMIX_NAMESPACE") != nullptr;
}

bool is_pmi(const HookContext& context) {
  return context.of_job("PMI_FD") != nullptr || context.of_job("PMI_RANK") != nullptr;
}

bool is_pals(const HookContext& context) { return context.of_job("PALS_SPOOL_DIR") != nullptr; }

bool has_mpi(const HookContext& context) {
  return is_pmix(context) || is_pmi(context) || is_pals(context);
}

bool uses_host_mpi(const HookContext& context) {
  return (context.mpi.empty() ? context.setting("mpi", "image") : context.mpi) == "host";
}

/// Returns whether `--mpi` was probably given: the type differs from the site's default for steps.
bool mpi_was_asked_for(const HookContext& context) {
  const std::string usual = slurm_setting(slurm_file(context, "slurm.conf"), "MpiDefault");
  return of_job(context, "SLURM_MPI_TYPE") != (usual.empty() ? "none" : usual);
}

/// Returns whether the variable is valid for one task, or one step, only. An image saved from a
/// running container may contain such variables of another step. In a step without MPI, programs
/// would then wait for a server that does not exist. Tuning variables of PMI and libfabric
/// (PMI_MMAP_SYNC_WAIT_TIME, FI_CXI_DEFAULT_CQ_SIZE) belong to the site, the job or the image.
bool belongs_to_task(std::string_view name) {
  constexpr std::array<std::string_view, 22> kPrefixes{"PMIX_",
                                                       "PMI2_",
                                                       "PALS_",
                                                       "SLINGSHOT_",
                                                       "SLURM_PMI",
                                                       "FI_CXI_COLL_",
                                                       "FI_CXI_HWCOLL_",
                                                       "PMI_FD",
                                                       "PMI_RANK",
                                                       "PMI_SIZE",
                                                       "PMI_ID",
                                                       "PMI_JOBID",
                                                       "PMI_APPNUM",
                                                       "PMI_KVS",
                                                       "PMI_PORT",
                                                       "PMI_LOCAL_",
                                                       "PMI_SPAWNED",
                                                       "PMI_UNIVERSE_SIZE",
                                                       "PMI_CONTROL_",
                                                       "PMI_PMIX_",
                                                       "PMI_SHARED_SECRET",
                                                       "PMI_PROCESS_MAPPING"};
  constexpr std::array<std::string_view, 2> kNames{"SLURM_MPI_TYPE",
                                                   "OMPI_MCA_orte_precondition_transports"};
  if (name.starts_with("PMIX_MCA_") || is_place_of_pmix(name)) return false;
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

MountEdit shared_directory(const std::string& path) {
  return {.source = path, .target = path, .read_only = false, .no_exec = true, .optional = true};
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

void replace_all(std::string& text, std::string_view what, const std::string& by) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

/// Returns the directory for client files of slurmstepd's PMIx server; empty if unknown. The server
/// passes it to clients as a key (PMIX_NSDIR), not as a variable: slurm,
/// src/plugins/mpi/pmix/pmixp_info.c.
std::string client_directory(const HookContext& context) {
  constexpr std::string_view kOfSlurm = "slurm.pmix.";
  const std::string names = of_job(context, "PMIX_NAMESPACE");  // slurm.pmix.JOB.STEP
  if (!names.starts_with(kOfSlurm)) return {};
  std::string base = of_job(context, "SLURM_PMIX_TMPDIR");
  if (base.empty()) base = slurm_setting(slurm_file(context, "mpi.conf"), "PMIxCliTmpDirBase");
  if (base.empty()) base = slurm_setting(slurm_file(context, "slurm.conf"), "TmpFS");
  if (base.empty()) base = "/tmp";
  const std::string node = of_job(context, "SLURMD_NODENAME");
  replace_all(base, "%n", node);
  replace_all(base, "%h", node);
  if (!base.starts_with('/')) return {};
  return without_slash(base) + "/spmix_appdir_" + std::to_string(context.uid) + "_" +
         names.substr(kOfSlurm.size());
}

/// Returns whether munge is in the image and its socket is in the container: then munge, not the
/// client, tells the server the client's user.
bool can_use_munge(const HookContext& context) {
  return of_job(context, "PMIX_SECURITY_MODE").find("munge") != std::string::npos &&
         ::access((context.host_root + kMungeSocket).c_str(), F_OK) == 0;
}

bool server_asks_nobody(const HookContext& context) {
  return of_job(context, "PMIX_SECURITY_MODE") == "none" ||
         of_job(context, "PMIX_MCA_psec") == "none";
}

/// Refuses the step if the user requested this type of --mpi. If the type is the site's default,
/// only warns: such a step may have no MPI in it.
void say_no(const HookContext& context, Edits& edits, const std::string& why,
            const std::string& hint) {
  if (mpi_was_asked_for(context)) {
    edits.refusal = formatted("{} (hint: {})", why, hint);
  } else if (context.job_number("SLURM_STEP_NUM_TASKS").value_or(0) > 1) {
    edits.warnings.push_back(formatted("{} (hint: {})", why, hint));
  } else {
    edits.notes.push_back(why);
  }
}

void check_namespaces(const HookContext& context, Edits& edits) {
  if (context.own_net && is_pmix(context)) {
    say_no(context, edits,
           "PMIx needs the node's network, which --container-unshare=net removes: MPI cannot start",
           "drop net, or use --mpi=none if the step does not use MPI");
  } else if (context.own_net && has_mpi(context) &&
             context.job_number("SLURM_STEP_NUM_NODES").value_or(0) > 1) {
    say_no(context, edits,
           "with --container-unshare=net there is no network between the nodes: MPI cannot connect "
           "its ranks",
           "drop net, or use one node");
  }
  if (context.own_container && (context.own_ipc || context.own_pid) && has_mpi(context) &&
      context.job_number("SLURM_STEP_NUM_TASKS").value_or(0) >
          std::max(1U, context.job_number("SLURM_STEP_NUM_NODES").value_or(0))) {
    say_no(
        context, edits,
        formatted(
            "with --container-private and --container-unshare={} the tasks on a node cannot share "
            "memory, which MPI needs: it would fail or be slow",
            context.own_ipc ? "ipc" : "pid"),
        "drop one of the two");
  }
}

/// Checks user IDs for a container with remapped root. Never refuses the step: its program may not
/// use MPI, although the image has it.
void check_root(const HookContext& context, Edits& edits, const ImageMpi& mpi) {
  if (!context.remap_root || context.uid == 0 || !is_pmix(context) || server_asks_nobody(context))
    return;
  // `prepare` has checked whether the node has munge. In this stage the root directory is the
  // container's.
  const bool has_munge =
      std::ranges::find(edits.mounts, kMungeDirectory, &MountEdit::source) != edits.mounts.end();
  if (has_munge && image_has_library(context, "libmunge.so.2")) return;
  const std::string why =
      "PMIx compares user IDs, which differ with --container-remap-root: MPI fails with the "
      "message that it "
      "\"was not built with SLURM's PMI support\"";
  if (!mpi.open_mpi && !mpi.pmix) return edits.notes.push_back(why);
  edits.warnings.push_back(
      formatted("{} (hint: drop --container-remap-root, or use munged on the node and "
                "libmunge.so.2 in the image, or set "
                "PMIxEnv=PMIX_MCA_psec=none in mpi.conf)",
                why));
}

Result<Edits> prepare_pmi(const HookContext& context) {
  Edits edits;
  if (const std::string server = without_slash(of_job(context, "PMIX_SERVER_TMPDIR"));
      server.starts_with('/')) {
    edits.mounts.push_back(shared_directory(server));
  }
  if (const std::string client = client_directory(context); !client.empty())
    edits.mounts.push_back(shared_directory(client));
  if (const std::string spool = without_slash(of_job(context, "PALS_SPOOL_DIR"));
      spool.starts_with('/')) {
    edits.mounts.push_back(shared_directory(spool));
  }
  offer_pmi2(context, edits);
  check_namespaces(context, edits);
  if (context.remap_root && is_pmix(context) && can_use_munge(context)) {
    auto munge = shared_directory(kMungeDirectory);
    munge.read_only = true;
    edits.mounts.push_back(std::move(munge));
  }
  return edits;
}

/// Compares the image's libraries with the chosen --mpi.
void compare(const HookContext& context, const ImageMpi& mpi, Edits& edits) {
  const std::string type = of_job(context, "SLURM_MPI_TYPE");
  const bool asked = mpi_was_asked_for(context);
  if (type == "pmi2" && asked && mpi.open_mpi && !mpi.mpich &&
      (mpi.open_mpi_5 || !ImageMpi::open_mpi_has_pmi2(context))) {
    edits.warnings.push_back(
        formatted("the image has {}: --mpi=pmi2 is not supported (hint: --mpi=pmix)",
                  mpi.open_mpi_5 ? "Open MPI 5, which has PMIx only" : "Open MPI without PMI-2"));
  }
  // Cray's launcher has no PMI server: ranks find each other only through Cray's own library.
  if (type == "cray_shasta" && (mpi.open_mpi || mpi.mpich) && !mpi.cray_pmi &&
      !uses_host_mpi(context) && context.job_number("SLURM_STEP_NUM_TASKS").value_or(0) > 1) {
    edits.warnings.emplace_back(
        "--mpi=cray_shasta and an image without Cray's PMI: ranks will not find each other, each "
        "is a program of its own"
        " (hint: --container-mpi=host, or --mpi=pmi2 for MPICH, --mpi=pmix for Open MPI)");
  }
  if (type.starts_with("pmix") && asked && mpi.mpich && !mpi.open_mpi && !mpi.pmix) {
    edits.warnings.emplace_back(
        "the image has MPICH and no libpmix.so.2: ranks will not find each other (hint: "
        "--mpi=pmi2)");
  }
  const bool without = !has_mpi(context) && (type.empty() || type == "none");
  if (!without || context.job_number("SLURM_STEP_NUM_TASKS").value_or(0) < 2) return;
  if (mpi.open_mpi)
    edits.notes.emplace_back("the image has Open MPI: use --mpi=pmix to connect ranks");
  if (mpi.mpich && !mpi.open_mpi)
    edits.notes.emplace_back(
        "the image has MPICH or a derivative: use --mpi=pmi2 to connect ranks");
}

Result<void> create_pmi(const HookContext& context, Edits& edits) {
  // The search for libraries takes half a millisecond. A single task without MPI does not need the
  // result.
  if (has_mpi(context) || context.job_number("SLURM_STEP_NUM_TASKS").value_or(0) > 1) {
    const ImageMpi mpi = ImageMpi::of(context);
    compare(context, mpi, edits);
    check_root(context, edits, mpi);
  }
  choose_pmi2(context, edits);
  return {};
}

void correct_variables(const HookContext& context, Edits& edits) {
  for (const auto& [name, value] : context.environment) {
    if (!belongs_to_task(name)) continue;
    const std::string* right = context.of_job(name);
    if (right == nullptr) {
      edits.environment.unset.insert(name);
    } else if (*right != value) {
      edits.environment.set[name] = *right;
    }
  }
}

/// Returns whether the list has only components that every PMIx has, or is an exclusion.
bool can_be_met(const std::string& list) {
  constexpr std::array<std::string_view, 3> kEverywhere{"none", "native", "hash"};
  const auto is_everywhere = [&](const std::string& word) {
    return std::ranges::find(kEverywhere, word) != kEverywhere.end();
  };
  return list.starts_with('^') || std::ranges::all_of(parts_of(list), is_everywhere);
}

/// Lets PMIx choose its components. A list of components requires all of them, and the PMIx of an
/// image rarely has the same components as the node's. Without a list, server and client agree on
/// common ones. A list that the image sets is kept, because it fits the image's PMIx.
void leave_choice_to_pmix(const HookContext& context, Edits& edits) {
  for (const char* name : {"PMIX_MCA_psec", "PMIX_MCA_gds", "PMIX_MCA_ptl"}) {
    const auto found = context.environment.find(name);
    if (found == context.environment.end() || can_be_met(found->second)) continue;
    const std::string* of_image = context.of_image(name);
    if (of_image == nullptr || *of_image != found->second) edits.environment.unset.emplace(name);
  }
  // Without the server's directory its shared memory cannot be used, and PMIx reports an error for
  // each rank.
  const std::string server = of_job(context, "PMIX_SERVER_TMPDIR");
  if (server.empty() || !context.open_in_image ||
      context.open_in_image(server.c_str(), O_PATH | O_DIRECTORY))
    return;
  edits.environment.unset.erase("PMIX_MCA_gds");
  edits.environment.defaults["PMIX_MCA_gds"] = "hash";
  edits.notes.push_back(server + " is hidden: PMIx falls back to TCP, which is slower");
}

/// Passes the choice of Slurm's server to PMIx, like enroot's hook of this name, but only
/// components that every PMIx has (see above).
void pass_choice_on(const HookContext& context, Edits& edits) {
  constexpr std::array<std::pair<const char*, const char*>, 3> kNames{
      {{"PMIX_PTL_MODULE", "PMIX_MCA_ptl"},
       {"PMIX_SECURITY_MODE", "PMIX_MCA_psec"},
       {"PMIX_GDS_MODULE", "PMIX_MCA_gds"}}};
  for (const auto& [of_server, of_client] : kNames) {
    const std::string list = of_job(context, of_server);
    if (!list.empty() && can_be_met(list) && !context.environment.contains(of_client))
      edits.environment.defaults[of_client] = list;
  }
}

/// Returns whether the task's program uses Open MPI, by its libraries or its text. With Python, a
/// later argument is the program's file.
bool uses_open_mpi(const HookContext& context) {
  for (const std::string& word : context.command) {
    const bool is_script = word.ends_with(".py");
    if (&word != &context.command.front() && !is_script) continue;
    const auto path = context.environment.find("PATH");
    const auto found = find_program(word, path == context.environment.end() ? "" : path->second);
    const UniqueFd file =
        context.open_in_image(found ? found->c_str() : word.c_str(), O_RDONLY | O_NONBLOCK);
    if (!file) continue;
    std::array<char, 8192> begin{};
    const ssize_t got = ::read(file.get(), begin.data(), begin.size());
    const std::string_view text(begin.data(), got < 0 ? 0 : static_cast<std::size_t>(got));
    if (is_script && text.find("mpi4py") != std::string_view::npos) return true;
    const auto elf =
        text.starts_with("\177ELF") ? read_elf(file.get()) : Result<ElfFile>(ElfFile());
    if (elf && std::ranges::find(elf->needed, "libmpi.so.40") != elf->needed.end()) return true;
  }
  return false;
}

/// Warns once per step that each rank runs without the others. Open MPI reports it in sixty lines,
/// or not at all.
void warn_of_lone_ranks(const HookContext& context, Edits& edits) {
  const std::string type = of_job(context, "SLURM_MPI_TYPE");
  const bool connects = has_mpi(context) || !(type.empty() || type == "none");
  if (connects || context.job_number("SLURM_PROCID").value_or(1) != 0 ||
      context.job_number("SLURM_STEP_NUM_TASKS").value_or(0) < 2)
    return;
  if (!context.open_in_image || !uses_open_mpi(context)) return;
  edits.warnings.emplace_back(
      "the program uses Open MPI and the step has no --mpi: its ranks will not find each other "
      "(hint: srun --mpi=pmix)");
}

Result<Edits> task_pmi(const HookContext& context) {
  Edits edits;
  warn_of_lone_ranks(context, edits);
  correct_variables(context, edits);
  if (is_pmix(context)) pass_choice_on(context, edits);
  if (is_pmix(context)) leave_choice_to_pmix(context, edits);
  if (!uses_host_mpi(context)) unset_places_outside(context, edits);
  name_pmi2(context, edits);
  return edits;
}

}  // namespace

const Hook slurm_pmi_hook{
    .name = "50-slurm-pmi",
    .says = "Slurm's PMIx, PMI and PALS: directories, and variables for each task",
    .prepare = prepare_pmi,
    .create = create_pmi,
    .task = task_pmi};

}  // namespace spc
