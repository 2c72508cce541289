#include "launch/spec/container_spec.hpp"

#include <unistd.h>

#include <fcntl.h>

#include <cerrno>

#include "protocol/image_record.hpp"
#include "task/root/root_setup.hpp"

namespace spc {
namespace {

/// enroot's /etc/rc executes the entrypoint of the image that it was made from. Apptainer's
/// runscript is what the image is for, rather than something that goes before it, so the user has
/// to ask for it.
std::vector<std::string> entrypoint_of(const ImageSettings& image, bool asked_by_user) {
  if (!image.entrypoint.empty() || image.start_script.empty()) return image.entrypoint;
  if (image.start_script != kEnrootScript && !asked_by_user) return {};
  return {"/bin/sh", image.start_script};
}

}  // namespace

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
  // Programs that open a shell look at SHELL; many images have no other than sh.
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

}  // namespace spc
