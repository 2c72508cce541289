#include "image/save/save.hpp"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/processors.hpp"
#include "base/process/user_namespace.hpp"
#include "image/export/apptainer_files.hpp"
#include "image/export/enroot_files.hpp"
#include "image/export/image_tree.hpp"
#include "image/export/sif_file.hpp"
#include "image/store/record.hpp"

namespace spc {
namespace {

constexpr std::size_t kMostOfRecord = 8 << 20;
constexpr std::size_t kMostOfEnvironment = 1 << 20;
constexpr std::uint64_t kMegabyte = 1'000'000;

/// The first task is bound to its own CPUs; all of the step's are free now. Outside of its cgroup
/// nobody gets any.
unsigned use_all_cpus() {
  cpu_set_t set;
  std::memset(&set, 0xff, sizeof set);
  (void)::sched_setaffinity(0, sizeof set, &set);
  return usable_processors();
}

/// What enroot or Apptainer want to find. The variables that were set in the container's
/// /etc/environment stay, unless the image has them.
std::vector<AddedFile> files_for(const SavedTree& tree, ImageForm form) {
  if (form == ImageForm::sif && !open_in_image(tree.root.get(), ".singularity.d"))
    return apptainer_files(tree.settings, tree.config);
  if (tree.in_files || form == ImageForm::sif) return {};
  auto files = enroot_files(tree.settings, tree.config);
  for (AddedFile& file : files) {
    if (file.path != "etc/environment") continue;
    std::string before = text_in_image(tree.root.get(), file.path, kMostOfEnvironment);
    if (!before.empty() && before.back() != '\n') before += '\n';
    file.text.insert(0, before);
  }
  return files;
}

}  // namespace

Result<SavedTree> read_saved_tree(UniqueFd root, int record, int settings,
                                  const std::string& image) {
  const auto bytes = SPC_TRY(read_file(record, kMostOfRecord));
  const auto parsed =
      bytes.empty() ? ImageRecord() : SPC_TRY(parse_image_record(bytes));  // of a file or directory
  SavedTree tree{.root = std::move(root),
                 .settings = parsed.settings,
                 .config = parsed.config,
                 .in_files = settings >= 0};
  if (tree.in_files) tree.settings = SPC_TRY(read_file(settings, kMostOfRecord));
  if (image.empty()) return tree;
  tree.manifest = parsed.manifest;
  tree.image = image;
  enter_saver_namespace();
  tree.known = SPC_TRY(KnownTree::read(tree.root.get()));
  return tree;
}

void enter_saver_namespace() {
  // The maps in /proc/self are root's as long as the process cannot be dumped, and one of a program
  // that nobody can read cannot.
  ::prctl(PR_SET_DUMPABLE, 1);
  [[maybe_unused]] const auto entered = enter_user_namespace(RootMap::self);
  ::prctl(PR_SET_DUMPABLE, 0);
}

Result<void> Save::prepare(const SavedTree& tree) {
  SPC_TRY(file_.make());
  if (tree.image.empty()) enter_saver_namespace();
  return {};
}

Result<void> Save::run(const SavedTree& tree, unsigned cpus) {
  std::uint64_t total = 0;
  KnownTree::Met met;
  SPC_TRY(walk_image(tree.root.get(), [&](const TreeEntry& entry) -> Result<void> {
    if (!tree.image.empty() && tree.known.is_unchanged(entry, met)) return {};
    total += 1024;
    if (S_ISREG(entry.status.st_mode)) total += static_cast<std::uint64_t>(entry.status.st_size);
    return {};
  }));
  total_ = total;
  const auto progress = [&](std::uint64_t bytes) { written_ = bytes; };
  const unsigned allowed = use_all_cpus();
  const auto write = [&]() -> Result<void> {
    const OciImage content{.config = tree.config, .settings = tree.settings, .name = "saved"};
    if (target_.form == ImageForm::oci_layer) {
      const ChangedImage image{
          .manifest = tree.manifest, .config = tree.config, .name = tree.image};
      return write_oci_layer(tree.root.get(), tree.known, image, file_.file(), progress);
    }
    if (target_.form == ImageForm::oci_archive)
      return write_oci_archive(tree.root.get(), content, file_.file(), progress);
    const unsigned workers = cpus == 0 ? allowed : std::min(cpus, allowed);
    SPC_TRY(write_squashfs(tree.root.get(), files_for(tree, target_.form), file_.file(), workers,
                           {}, progress));
    return target_.form == ImageForm::sif ? make_sif(file_.file(), tree.config) : Result<void>();
  };
  if (const auto written = write(); !written) return file_.about(written.error());
  struct stat status {};
  if (::fstat(file_.file(), &status) == 0) size_ = static_cast<std::uint64_t>(status.st_size);
  const std::scoped_lock lock(naming_);
  return file_.publish();
}

std::string Save::progress() const {
  const std::uint64_t written = written_;
  if (total_ == 0) return "reading its files";
  const std::uint64_t percent = std::min<std::uint64_t>(written * 100 / total_, 99);
  return formatted("{}% of {} MB", percent, total_ / kMegabyte);
}

std::string Save::summary(unsigned seconds) const {
  return formatted("{} MB became {} MB in {} s", total_ / kMegabyte, size_ / kMegabyte, seconds);
}

void Save::abandon() {
  naming_.lock();
  file_.unmake();
}

}  // namespace spc
