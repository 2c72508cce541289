#include "tool/images/remote_image.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "base/format.hpp"
#include "image/credentials/credentials.hpp"
#include "image/export/new_file.hpp"
#include "image/reference/file_url.hpp"
#include "image/registry/registry_session.hpp"
#include "image/store/store.hpp"
#include "tool/images/file_import.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {
namespace {

Result<FetchedFile> fetch_into(const Config& config, const Wanted& wanted, int file) {
  const auto remote = SPC_TRY(RemoteFile::parse(wanted.image, config.default_registry));
  const std::string shown = without_secrets(wanted.image);
  PullDisplay display(shown, wanted.quiet);
  const auto http = SPC_TRY(HttpClient::create(
      {.stall = std::chrono::seconds(config.stall_timeout), .proxies = proxies_of_user(config)}));
  RemoteAccess access{.http = *http, .log = display, .config = config, .ask_user = {}, .meter = {}};
  access.meter = [&](std::uint64_t done, std::uint64_t total) { display.meter(done, total); };
  if (remote.image) {
    access.ask_user = [&] {
      return find_credentials(CredentialPlaces::of_user(), *remote.image, remote.image->user,
                              display);
    };
  }
  const std::string step = "pull " + in_quotes(shown);
  const auto fetched = SPC_TRY_DURING(step, fetch_remote_file(access, remote, file));
  SPC_TRY_DURING(step, check_image_file(file));
  return fetched;
}

}  // namespace

Result<Digest> obtain_remote_image(int directory, const Config& config, const Wanted& wanted) {
  const UniqueFd file(::openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file) return Error::from_errno(errno, "create a file in the user's image store");
  SPC_TRY(fetch_into(config, wanted, file.get()));
  const std::string name = name_without_secrets(wanted.image);
  const Digest digest = SPC_TRY_DURING("pull " + in_quotes(without_secrets(name)),
                                       import_file(directory, file.get(), name));
  const auto store = SPC_TRY(ImageStore::open(directory));
  SPC_TRY(store.write_name({.name = ref_file(name),
                            .manifest = digest,
                            .asked_at = static_cast<std::int64_t>(std::time(nullptr))}));
  return digest;
}

Result<Digest> fetch_remote_image(const Config& config, const Wanted& wanted,
                                  const std::string& path, bool replace) {
  auto file = SPC_TRY(NewFile::create(path, replace ? Replace::yes : Replace::no));
  const auto fetched = SPC_TRY(fetch_into(config, wanted, file.file()));
  SPC_TRY(file.publish());
  return fetched.digest;
}

}  // namespace spc::tool
