#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/unique_fd.hpp"
#include "config/config.hpp"
#include "launch/site/site_request.hpp"
#include "launch/task/task_notes.hpp"
#include "protocol/task.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

SitePolicy site_with(const std::vector<std::pair<std::string, std::string>>& records) {
  SitePolicy site;
  for (const auto& [key, value] : records) site.set(key, value);
  return site;
}

std::string message_of(const Result<void>& done) {
  return done ? "accepted" : done.error().message();
}

}  // namespace

TEST_CASE("path_is_below_directory_by_components") {
  CHECK(lies_below("/images/a", "/images"));
  CHECK(lies_below("/images/a", "/images/"));
  CHECK(lies_below("/images", "/images"));
  CHECK(lies_below("/anything", "/"));
  CHECK_FALSE(lies_below("/images-of-alice/a", "/images"));
  CHECK_FALSE(lies_below("/imagesa", "/images/"));
  CHECK_FALSE(lies_below("/", "/images"));
  CHECK_FALSE(lies_below("/home/images/a", "/images"));
}

TEST_CASE("image_path_is_resolved_before_rules") {
  char directory[] = "/tmp/spc-rules-XXXXXX";
  REQUIRE(::mkdtemp(directory) != nullptr);
  const std::string base = directory;
  ::mkdir((base + "/images").c_str(), 0755);
  ::close(::open((base + "/images/good.tar").c_str(), O_CREAT | O_WRONLY, 0644));
  ::close(::open((base + "/mine.tar").c_str(), O_CREAT | O_WRONLY, 0644));
  ::close(::open((base + "/images/a:b.tar").c_str(), O_CREAT | O_WRONLY, 0644));
  REQUIRE(::symlink("../mine.tar", (base + "/images/link.tar").c_str()) == 0);
  REQUIRE(::symlink("images/good.tar", (base + "/link.tar").c_str()) == 0);
  const SitePolicy site =
      site_with({{"allowed_paths", "/nowhere"}, {"allowed_paths", base + "/images"}});
  const auto check = [&](const std::string& text) {
    auto image = ImageLocation::parse(text).value();
    const auto done = check_place(image, site);
    return done ? image.path : done.error().message();
  };
  CHECK(check(base + "/images/good.tar") == base + "/images/good.tar");
  CHECK(check("oci-archive:" + base + "/link.tar") == base + "/images/good.tar");
  CHECK(check(base + "/images/link.tar")
            .find("which is \"" + base + "/mine.tar\": this site allows image files only in") !=
        std::string::npos);
  CHECK(check(base + "/images/../mine.tar").find("this site allows") != std::string::npos);
  CHECK(check(base + "/images/missing").find("no such file") != std::string::npos);
  CHECK(check("podman://x").find("this site allows") != std::string::npos);
  CHECK(check("docker://x").empty());
  auto with_colon = ImageLocation::parse("/x").value();
  with_colon.kind = ImageLocation::Kind::oci_archive;
  with_colon.path = base + "/images/a:b.tar";
  CHECK(message_of(check_place(with_colon, site)).find("must not contain a colon") !=
        std::string::npos);
  const UniqueFd mine(::open((base + "/mine.tar").c_str(), O_RDONLY | O_CLOEXEC));
  CHECK(message_of(check_opened_place(mine.get(), "x", site)).find("this site allows") !=
        std::string::npos);
  CHECK(message_of(check_opened_place(mine.get(), "x", SitePolicy())) == "accepted");
  std::filesystem::remove_all(base);
}

TEST_CASE("option_disabled_by_site_is_refused") {
  const SitePolicy site =
      site_with({{"features_off", "container-save"}, {"features_off", "container-name"}});
  CHECK(message_of(check_features({"container-mounts"}, site.features_off)) == "accepted");
  CHECK(message_of(check_features({"container-mounts", "container-name"}, site.features_off)) ==
        "--container-name: not allowed by this site (hint: drop it, or ask the administrator: "
        "features_off)");
}

TEST_CASE("site_mounts_precede_user_mounts") {
  const SitePolicy site = site_with(
      {{"mounts", "/site:/s:ro"},
       {"enroot_mounts", "/etc/enroot/mounts.d/a.fstab, line 2\t/e:/e"},
       {"enroot_mounts_of_user", "/home/a/.config/enroot/mounts.d/b.fstab, line 1\t/u:/u"},
       {"writable", "true"},
       {"unshare", "net"}});
  PolicyRecord policy;
  policy.writable = 0;
  LaunchRequest request;
  request.mounts = parse_mounts("/own:/own").value();
  auto fitted = fit_to_site(request, policy, site).value();
  REQUIRE(fitted.mounts.size() == 4);
  CHECK(fitted.mounts[0].source == "/e");
  CHECK(fitted.mounts[0].origin == "/etc/enroot/mounts.d/a.fstab, line 2");
  CHECK(fitted.mounts[1].source == "/u");
  CHECK(fitted.mounts[2].origin == "config.toml: mounts");
  CHECK(fitted.mounts[2].flags == TaskMessage::source_read_only);
  CHECK(fitted.mounts[3].origin == "--container-mounts");
  CHECK(fitted.writable == true);
  CHECK(fitted.remap_root == false);
  CHECK(fitted.namespaces == own_net);
  request.writable = false;
  request.contain = true;
  fitted = fit_to_site(request, policy, site).value();
  CHECK(fitted.writable == false);
  CHECK(fitted.mounts.size() == 3);
}

TEST_CASE("site_mount_invalid_is_reported_with_file") {
  CHECK(site_mounts(site_with({{"mounts", "/a:/b:rp"}}), UsersMounts::yes)
            .error()
            .message()
            .starts_with("config.toml: mounts: \"/a:/b:rp\": "));
  CHECK(site_mounts(site_with({{"enroot_mounts", "/x.fstab, line 3\t/a:/b:rp"}}), UsersMounts::yes)
            .error()
            .message()
            .starts_with("/x.fstab, line 3: \"/a:/b:rp\": "));
}

TEST_CASE("log_line_of_start_is_one_line") {
  ContainerSpec spec;
  UserIdentity user;
  user.uid = 7;
  user.name = "alice";
  TaskMessage ready;
  ready.layers = 3;
  ready.times[static_cast<std::size_t>(Phase::import)] = 1234;
  const std::map<std::string, std::string> job{
      {"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "0"}, {"SLURMD_NODENAME", "n\n1"}};
  ready.times[static_cast<std::size_t>(Phase::root_setup)] = 900;
  CHECK(start_record("a\nb\" digest=forged", user, spec, ready, true, 5678, job) ==
        "start job=12 step=0 node=n\\n1 uid=7 user=alice image=\"a\\nb\\\" digest=forged\" "
        "digest=- from=store layers=3 shared=0 "
        "fuse=0 pulled=1 import_ms=1.2 sources_ms=0.0 layers_ms=0.0 overlay_ms=0.0 pivot_ms=0.0 "
        "root_ms=0.9 start_ms=5.7");
  CHECK(failure_record("a b\n", ErrorKind::not_found, job) ==
        "failed job=12 step=0 node=n\\n1 image=\"a b\\n\" kind=not_found");
  CHECK(pull_record("a\nb\"", "digest=x\nforged", job) ==
        "pull job=12 step=0 node=n\\n1 image=\"a\\nb\\\"\" digest=x\\nforged");
}

TEST_CASE("task_environment_names_its_image") {
  ContainerSpec spec;
  spec.environment["SCONTAINER_IMAGE_DIGEST"] = {"of another", Origin::job};
  tell_image("./x.sqsh", spec);
  CHECK(spec.environment["SCONTAINER_IMAGE_NAME"].value == "./x.sqsh");
  CHECK_FALSE(spec.environment.contains("SCONTAINER_IMAGE_DIGEST"));
  spec.manifest = Digest::parse("sha256:" + std::string(64, 'a')).value();
  tell_image("x", spec);
  CHECK(spec.environment["SCONTAINER_IMAGE_DIGEST"].value == "sha256:" + std::string(64, 'a'));
}
