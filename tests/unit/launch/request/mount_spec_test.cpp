#include "request/mount_spec.hpp"

#include <unistd.h>

#include <filesystem>

#include "protocol/task.hpp"
#include "task/root_setup.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

std::string mount_refusal(std::string_view text) {
  auto mounts = parse_mounts(text);
  return mounts ? "accepted" : mounts.error().message();
}

}  // namespace

TEST_CASE("mount_target_defaults_to_source") {
  const auto mounts = parse_mounts("/scratch").value();
  REQUIRE(mounts.size() == 1);
  CHECK(mounts[0].source == "/scratch");
  CHECK(mounts[0].target == "/scratch");
  CHECK(mounts[0].flags == 0);
}

TEST_CASE("mounts_are_separated_by_commas_and_deduplicated") {
  const auto mounts = parse_mounts("/a:/b,/c:/d:ro,/a:/b").value();
  REQUIRE(mounts.size() == 2);
  CHECK(mounts[1].target == "/d");
  CHECK(mounts[1].flags == TaskMessage::source_read_only);
}

TEST_CASE("mount_flags_are_joined_by_plus") {
  const auto mounts = parse_mounts("/a:/b:ro+bind+noexec+nosuid+x-create=dir").value();
  CHECK(mounts[0].flags == (TaskMessage::source_read_only | TaskMessage::source_no_exec));
}

TEST_CASE("mount_nosymfollow_and_its_opposite_are_flags") {
  CHECK(parse_mounts("/a:/b:nosymfollow+ro").value()[0].flags ==
        (TaskMessage::source_no_symlinks | TaskMessage::source_read_only));
  CHECK(parse_mounts("/a:/b:nosymfollow+symfollow").value()[0].flags == 0);
}

TEST_CASE("mount_relative_target_is_below_root") {
  CHECK(parse_mounts("./data").value()[0].source == "./data");
  CHECK(parse_mounts("./data").value()[0].target == "/data");
  CHECK(parse_mounts("/x:././y").value()[0].target == "/y");
}

TEST_CASE("mount_flags_without_effect_are_accepted") {
  const auto mounts =
      parse_mounts("/a:/b:rw+nodev+nosuid+noatime+x-create=auto+rslave+rshared+defaults").value();
  CHECK(mounts[0].flags == 0);
  CHECK(parse_mounts("/a:/b:private").value()[0].flags == TaskMessage::source_private);
  CHECK(parse_mounts("/a:/b:unbindable+ro").value()[0].flags ==
        (TaskMessage::source_unbindable | TaskMessage::source_read_only));
  CHECK(parse_mounts("/a:/b:private+slave").value()[0].flags == 0);
}

TEST_CASE("mount_nofail_allows_missing_source") {
  CHECK(parse_mounts("/a:/b:nofail").value()[0].optional);
  CHECK_FALSE(parse_mounts("/a:/b:nofail").value()[0].silent);
  CHECK(parse_mounts("/a:/b:ro+nofail+silent").value()[0].silent);
}

TEST_CASE("mount_ro_or_rw_without_target_keeps_path") {
  const auto mounts = parse_mounts("/a:ro,/c:rw").value();
  REQUIRE(mounts.size() == 2);
  CHECK(mounts[0].target == "/a");
  CHECK(mounts[0].flags == TaskMessage::source_read_only);
  CHECK(mounts[1].target == "/c");
  CHECK(mounts[1].flags == 0);
}

TEST_CASE("mount_tmpfs_has_size_and_mode") {
  const auto plain = parse_mounts("tmpfs:/scratch").value()[0];
  CHECK(plain.kind == MountSpec::Kind::tmpfs);
  CHECK(plain.target == "/scratch");
  CHECK(plain.source.empty());
  CHECK_FALSE(plain.size);
  CHECK_FALSE(plain.mode);
  const auto sized = parse_mounts("tmpfs:/scratch:size=2G+mode=1777+noexec").value()[0];
  CHECK(sized.size->bytes == std::uint64_t{2} << 30);
  CHECK(sized.mode == 01777U);
  CHECK(sized.flags == TaskMessage::source_no_exec);
  CHECK(parse_mounts("tmpfs:/scratch:size=25%").value()[0].size->percent == 25);
}

TEST_CASE("mount_removal_unmounts_target") {
  for (const char* text :
       {"umount:/tmp", "umount:/tmp:x-detach", "tmpfs:/tmp:x-detach", "/x:/tmp:x-detach"}) {
    const auto mount = parse_mounts(text).value()[0];
    CHECK(mount.kind == MountSpec::Kind::removal);
    CHECK(mount.source.empty());
    CHECK(mount.target == "/tmp");
  }
}

TEST_CASE("mount_squashfs_file_is_recognised") {
  for (const char* text :
       {"data.sqsh:/data:sqsh", "./data.sqsh:/data:ro+sqsh", "/x/data.sqsh:/data:sqsh+nofail"}) {
    CHECK(parse_mounts(text).value()[0].kind == MountSpec::Kind::squashfs);
  }
  CHECK(parse_mounts("data.sqsh:/data:sqsh").value()[0].source == "data.sqsh");
}

TEST_CASE("mount_separators_can_be_quoted") {
  CHECK(parse_mounts("/a\\,b\\:c\\ d\\\"\\\\:/x").value()[0].source == "/a,b:c d\"\\");
  CHECK(parse_mounts("\"/a,b:c d\":\"/x y\":ro").value()[0].source == "/a,b:c d");
  CHECK(parse_mounts("\"/a,b:c d\":\"/x y\":ro").value()[0].target == "/x y");
  CHECK(parse_mounts("/a b:/c d").value()[0].source == "/a b");
  CHECK(parse_mounts("/a\\n:/b").value()[0].source == "/a\\n");
  CHECK(parse_mounts("/a\"b:/c").value()[0].source == "/a\"b");
  CHECK(parse_mounts("\"/a\",/b").value().size() == 2);
  CHECK(parse_mounts("\"/a\\\"b\":/c").value()[0].source == "/a\"b");
  CHECK(mount_refusal("\"ro\":/x").starts_with("\"\\\"ro\\\":/x\": mount source"));
  CHECK(mount_refusal("/a:\"ro\"").find("mount target") != std::string::npos);
  CHECK(mount_refusal("\"/a:/b") ==
        "\"\\\"/a:/b\": the closing quote is missing (hint: write a literal "
        "quote as \\\")");
  CHECK(mount_refusal("\"/a\"b:/c").find("text after the closing quote") != std::string::npos);
}

namespace {

/// Returns SOURCE at TARGET of each mount, or the error, as alice reads it in an #SBATCH line.
std::string meant(const std::string& text,
                  UserPaths::Variables variables = UserPaths::Variables::slurm) {
  const auto mounts =
      parse_mounts(text, {.home = "/home/alice/", .here = "/", .variables = variables});
  if (!mounts) return mounts.error().message();
  std::string all;
  for (const MountSpec& mount : *mounts) all += mount.source + " at " + mount.target + "\n";
  return all;
}

constexpr char kNotExpanded[] =
    " is not expanded (hint: Slurm expands no variables in #SBATCH lines: write the path in full, "
    "or give the option to srun)";

}  // namespace

TEST_CASE("mount_tilde_is_the_users_home") {
  CHECK(meant("~/data:/data") == "/home/alice/data at /data\n");
  CHECK(meant("~") == "/home/alice at /home/alice\n");
  CHECK(meant("~:/home/me,~/x:ro") == "/home/alice at /home/me\n/home/alice/x at /home/alice/x\n");
  CHECK(meant("/data:~/in,tmpfs:~/t") == "/data at /home/alice/in\n at /home/alice/t\n");
  CHECK(meant("\"~/a,b\":/x,~/c\\,d:/y") == "/home/alice/a,b at /x\n/home/alice/c,d at /y\n");
  CHECK(meant("~/x.sqsh:/x:sqsh") == "/home/alice/x.sqsh at /x\n");
  CHECK(meant("./~/a:/b") == "./~/a at /b\n");
  CHECK(meant("~bob/data:/data") ==
        "\"~bob/data\": only ~/ (the user's own home directory) is expanded "
        "(hint: use the absolute path: echo ~bob prints it)");
  CHECK(mount_refusal("~/data:/data").find("home directory is not known") != std::string::npos);
}

TEST_CASE("mount_with_unexpanded_variable_is_refused") {
  CHECK(meant("$HOME/data:/data") == "\"$HOME/data\": \"$HOME\"" + std::string(kNotExpanded));
  for (const char* text :
       {"/scratch/$USER/x:/x", "./${SLURM_JOB_ID}:/x", "/x:/data/$USER", "${SCRATCH}:/x",
        "/x:$HOME", "/x/$(date):/y", "tmpfs:$TMPDIR", "/a:/b,$WORK/c", "/x/`id`:/y"}) {
    INFO(text);
    CHECK(meant(text).find("is not expanded (hint: Slurm expands no variables in #SBATCH lines: "
                           "write ") != std::string::npos);
    CHECK(meant(text).find("did you mean") == std::string::npos);
  }
  CHECK(meant("$DATA:/x").find("write it in full") != std::string::npos);
  CHECK(meant("\"/x/$y\":/z") == "/x/$y at /z\n");
  CHECK(meant("/cost$:/a$.b") == "/cost$ at /a$.b\n");
  CHECK(meant("/x/$y:/z", UserPaths::Variables::seen) == "/x/$y at /z\n");
  CHECK(meant("$X/y:/z", UserPaths::Variables::shell).find("single quotes") != std::string::npos);
}

TEST_CASE("mount_flag_of_docker_behind_a_comma_gets_the_form") {
  const auto hint = [](const std::string& text) {
    const std::string all = mount_refusal(text);
    return all.substr(std::min(all.find(": \"", all.find("(hint: ")), all.size()));
  };
  CHECK(mount_refusal("./a:/b:rw,z") ==
        "\"z\": is a flag, not a path (hint: flags are joined by +, and docker's z, Z, U, cached, "
        "delegated and consistent are not needed: \"./a:/b:rw\")");
  CHECK(hint("./a:/b:ro,noexec,Z") == ": \"./a:/b:ro+noexec\")");
  CHECK(hint("./a:/b,ro,/c") == ": \"./a:/b:ro\")");
  CHECK(hint("./a:ro,nosuid") == ": \"./a:ro+nosuid\")");
  CHECK(hint("./a,rw") == ": \"./a:rw\")");
  CHECK(hint("/x,/a:/b,rbind,rslave") == ": \"/a:/b:rbind+rslave\")");
  CHECK(hint("tmpfs:/x:size=1G,mode=0755") == ": \"tmpfs:/x:size=1G+mode=0755\")");
  CHECK(mount_refusal("./a:/b:z") ==
        "\"./a:/b:z\": flag \"z\" is docker's and not needed (hint: leave it out; flags are joined "
        "by +: ro+noexec)");
  CHECK(mount_refusal("type=bind,source=/a,target=/b") ==
        "\"type=bind\": is the form of docker's --mount (hint: SRC[:DST[:FLAGS]])");
  CHECK(mount_refusal("/a,data:/b").find("did you mean \"./data\"?") != std::string::npos);
}

TEST_CASE("mount_separators_in_paths_and_lists_are_explained") {
  CHECK(mount_refusal("./a:/x;./b:/y") ==
        "\"./a:/x;./b:/y\": mounts are separated by commas, not by ; (hint: \"./a:/x,./b:/y\")");
  CHECK(mount_refusal("/a;~/b").find("(hint: \"/a,~/b\")") != std::string::npos);
  CHECK(mount_refusal("/a;b:/c") == "accepted");
  const std::string place = "/tmp/mount-test-" + std::to_string(::getpid());
  for (const char* name : {"/a,b", "/c:d"}) std::filesystem::create_directories(place + name);
  CHECK(mount_refusal(place + "/a,b:/x")
            .ends_with("(hint: a comma in a path is written \\,: '" + place + "/a\\,b')"));
  CHECK(mount_refusal(place + "/c:d:/x").find("unknown flag") != std::string::npos);
  CHECK(mount_refusal(place + "/c:d")
            .ends_with("(hint: a colon in a path is written \\:: '" + place + "/c\\:d')"));
  std::filesystem::remove_all(place);
}

TEST_CASE("mount_removal_removes_last_mount_and_those_below") {
  const auto same = [](const std::string& path) { return path; };
  const auto made = [&](std::vector<std::string> targets, std::vector<Removal> removals) {
    const auto which = mounts_to_make(targets, removals, same);
    if (!which) return which.error().message();
    std::string text;
    for (const bool one : *which) text += one ? '1' : '0';
    return text;
  };
  CHECK(made({"/tmp", "/a"}, {}) == "11");
  CHECK(made({"/tmp", "/a"}, {{"/tmp", 2, false, ""}}) == "01");
  CHECK(made({"/a", "/a", "/a/b", "/ab"}, {{"/a", 4, false, ""}}) == "1001");
  CHECK(made({"/a", "/a/b", "/a"}, {{"/a", 2, false, ""}}) == "001");
  CHECK(made({"/a", "/a"}, {{"/a", 2, false, ""}, {"/a", 2, false, ""}}) == "00");
  CHECK(made({"/a"}, {{"/b", 1, true, ""}}) == "1");
  CHECK(made({"/a"}, {{"/a", 0, false, "umount:/a"}})
            .starts_with("unmount \"umount:/a\": not a mount"));
}

TEST_CASE("memory_size_units_are_parsed") {
  const auto bytes = [](std::string_view text) {
    const auto size = MemorySize::parse(text);
    return size ? std::to_string(size->bytes) +
                      (size->percent != 0 ? " " + std::to_string(size->percent) + "%" : "")
                : size.error().message();
  };
  CHECK(bytes("1") == "1");
  CHECK(bytes("10K") == "10240");
  CHECK(bytes("3m") == "3145728");
  CHECK(bytes("2G") == "2147483648");
  CHECK(bytes("1T") == "1099511627776");
  CHECK(bytes("50%") == "0 50%");
  CHECK(bytes("0") ==
        "\"0\": too small (hint: bytes with suffix K, M, G or T, or N% of the job's memory)");
  for (const char* text : {"", "K", "-1", "1X", "1GiB", "1 G", "0x10", "1.5G", "+1", "%"}) {
    CHECK(bytes(text).find("is not a size") != std::string::npos);
  }
  for (const char* text : {"101%", "18446744073709551616%"})
    CHECK(bytes(text).find("more than 100%") != std::string::npos);
  for (const char* text : {"18446744073709551615", "18446744073709551616", "18446744073709551617",
                           "17179869184G", "1048576T"}) {
    CHECK(bytes(text).find("is too large") != std::string::npos);
  }
}

TEST_CASE("memory_size_is_share_of_job_within_site_limit") {
  constexpr std::uint64_t kGigabyte = 1 << 30;
  CHECK(bytes_of({.bytes = 7 << 20}, kGigabyte, "").value() == 7 << 20);
  CHECK(bytes_of({.percent = 25}, kGigabyte, "").value() == kGigabyte / 100 * 25);
  CHECK(bytes_of({.bytes = 1}, kGigabyte, "").value() == 4096);
  CHECK(bytes_of({.percent = 50}, kGigabyte, "50%").value() == kGigabyte / 100 * 50);
  CHECK(bytes_of({.percent = 50}, kGigabyte, "1M").error().message() ==
        "536870900 bytes exceed the 1M allowed by this site (hint: request less)");
}

TEST_CASE("memory_of_job_defaults_to_request") {
  const auto machine = memory_of_job({});
  CHECK(machine > 1 << 20);
  CHECK(memory_of_job({{"SLURM_MEM_PER_NODE", "64"}}) == 64 << 20);
  CHECK(memory_of_job({{"SLURM_MEM_PER_CPU", "32"}, {"SLURM_CPUS_ON_NODE", "3"}}) == 96 << 20);
  for (const char* text : {"0", "", "-1", "x", "18446744073709551616", "99999999999999"}) {
    CHECK(memory_of_job({{"SLURM_MEM_PER_NODE", text}}) == machine);
  }
  CHECK(memory_of_job({{"SLURM_MEM_PER_CPU", "99999999999999"},
                       {"SLURM_CPUS_ON_NODE", "99999999999999"}}) == machine);
}

TEST_CASE("mount_over_kernel_directories_is_refused") {
  const auto refused = [](const char* text) {
    return !refuse_kernel_views(parse_mounts(text)->at(0));
  };
  for (const char* text : {"tmpfs:/proc", "/a:/proc/", "/a://proc/self",
                           "/a:/x/../proc/self/attr/exec", "/a:/proc/stat/x", "tmpfs:/sys",
                           "/a:./dev", "/sys:/dev", "x.sqsh:/proc:sqsh", "/a:/proc/net"}) {
    INFO(text);
    CHECK(refused(text));
  }
  for (const char* text :
       {"/proc", "/dev:/dev", "/sys/:/sys", "umount:/proc", "/a:/proc/meminfo", "/a:/proc/net/dev",
        "tmpfs:/dev/shm", "/dev/fuse", "/a:/sys/class", "/a:/process", "/a:/device"}) {
    INFO(text);
    CHECK(!refused(text));
  }
}

// outcome 12 refused: mounts that cannot be meant; the others round-trip
TEST_CASE("mount_invalid_is_refused_with_item_and_reason") {
  CHECK(mount_refusal("") == "argument required");
  CHECK(mount_refusal("/a:") == "\"/a:\": invalid format (hint: SRC[:DST[:FLAGS]])");
  CHECK(mount_refusal("/a,,/b") ==
        "\"\": invalid format (hint: no blank may follow a comma, and none "
        "ends the list: SRC:DST,SRC:DST)");
  CHECK(mount_refusal("/a:/b:ro:x") == "\"/a:/b:ro:x\": invalid format (hint: SRC[:DST[:FLAGS]])");
  CHECK(mount_refusal("data") ==
        "\"data\": mount source must be a relative path (beginning with .), an "
        "absolute path, "
        "\"tmpfs\" or \"umount\" (hint: did you mean \"./data\"?)");
  CHECK(mount_refusal("/a:b") ==
        "\"/a:b\": mount target must be a relative path (beginning with .) or "
        "an absolute path "
        "(hint: did you mean \"./b\"?)");
  CHECK(mount_refusal("/a:/b:rp") ==
        "\"/a:/b:rp\": unknown flag \"rp\" (hint: flags, joined by +: ro, rw, "
        "noexec, nofail, sqsh)");
  CHECK(mount_refusal("/a:/b:suid") == "\"/a:/b:suid\": suid: every mount is nosuid");
  CHECK(mount_refusal("/a:/b:x-move").starts_with("\"/a:/b:x-move\": x-move: not supported"));
  CHECK(mount_refusal("/a:/b:").find("unknown flag \"\"") != std::string::npos);
  CHECK(mount_refusal("tmpfs").find("invalid format (hint: tmpfs:DST[:FLAGS])") !=
        std::string::npos);
  CHECK(mount_refusal("umount:/") == "\"umount:/\": cannot unmount the container's root");
  CHECK(mount_refusal("tmpfs:/x/..") == "\"tmpfs:/x/..\": cannot mount on the container's root");
  CHECK(mount_refusal("tmpfs:ro").find("mount target must be") != std::string::npos);
  CHECK(mount_refusal("tmpfs:/x:mode=4755").find("\"4755\" is not a mode") != std::string::npos);
  CHECK(mount_refusal("tmpfs:/x:huge=yes").find("never, always, within_size or advise") !=
        std::string::npos);
  CHECK(mount_refusal("tmpfs:/x:nr_inodes=0").find("\"0\" is not a number of files") !=
        std::string::npos);
  CHECK(mount_refusal("tmpfs:/x:uid=77777").find("uid=77777: a tmpfs is its user's") !=
        std::string::npos);
  const auto huge = parse_mounts("tmpfs:/x:nr_inodes=9+huge=advise+uid=0+noexec").value()[0];
  CHECK(huge.flags == (TaskMessage::source_huge_advise | TaskMessage::source_no_exec));
  CHECK(huge.inodes == 9);
  CHECK(mount_refusal("/a:/../etc").find("the target leaves the container's root") !=
        std::string::npos);
  CHECK(mount_refusal("/a:../x").find("the target leaves the container's root") !=
        std::string::npos);
  CHECK(mount_refusal("tmpfs:/x:mode=+7").find("unknown flag \"7\"") == std::string::npos);
  CHECK(mount_refusal("tmpfs:/x:size=1X").find("\"1X\" is not a size") != std::string::npos);
  CHECK(mount_refusal("tmpfs:/x:x-create=file").find("must be a directory") != std::string::npos);
  CHECK(mount_refusal("/a:/b:size=1G").find("unknown flag \"size=1G\"") != std::string::npos);
  CHECK(mount_refusal("data:/b:sqsh+ro+x").find("unknown flag \"x\"") != std::string::npos);
  CHECK(mount_refusal("/a:/") == "\"/a:/\": cannot mount on the container's root");
  for (const char* target :
       {".", "//", "/.", "/..", "./", "././/", "/x/..", "../..", "/x/../../y/.."}) {
    const std::string item = std::string("/a:") + target;
    CHECK(mount_refusal(item) == "\"" + item + "\": cannot mount on the container's root");
  }
  CHECK(mount_refusal("/a:/x/../y") == "accepted");
  CHECK(mount_refusal("/a:/...") == "accepted");
  CHECK(mount_refusal("/\x1b[31m:/b:no") ==
        "\"/\\x1b[31m:/b:no\": unknown flag \"no\" (hint: flags, joined by +: "
        "ro, rw, noexec, nofail, sqsh)");
}
