#include "export/archive.hpp"
#include "export/write_image.hpp"
#include "request/container_name.hpp"
#include "unit/catch2_compat.hpp"

using namespace spc;

namespace {

const std::map<std::string, std::string> kJob{
    {"SLURM_JOB_ID", "42"},       {"SLURM_STEP_ID", "3"},    {"SLURM_NODEID", "0"},
    {"SLURMD_NODENAME", "cn007"}, {"SLURM_JOB_USER", "ann"}, {"SLURM_JOB_NAME", "a/b"}};

std::string here(const std::string& path, const std::string& node = "0") {
  auto job = kJob;
  job["SLURM_NODEID"] = node;
  return save_path_here(path, job).value_or("(another node)");
}

std::string save_path_refusal(const std::string& path) {
  const auto checked = check_save_path(path);
  return checked ? "accepted" : checked.error().message();
}

}  // namespace

// outcome 16 refused: save path of every wrong form
TEST_CASE("save_path_of_directory_is_refused") {
  for (const char* path :
       {"/home/ann/", "/", "./", ".", "..", "a/.", "a/..", "oci-archive:", "oci-archive:a/"}) {
    CAPTURE(path);
    CHECK(save_path_refusal(path).find("target is a directory (hint: name a file in it)") !=
          std::string::npos);
  }
  for (const char* path : {"x", "./x.sqsh", "/a/..b", "oci-archive:x.tar"})
    CHECK(save_path_refusal(path) == "accepted");
}

TEST_CASE("save_path_equal_on_all_nodes_is_written_by_first") {
  CHECK(here("/a/x.sqsh") == "/a/x.sqsh");
  CHECK(here("/a/x.sqsh", "1") == "(another node)");
  CHECK(here("/a/%j.sqsh", "1") == "(another node)");
  CHECK(here("/a/%%N.sqsh", "1") == "(another node)");
  CHECK(here("/a/%N.sqsh", "1") == "/a/cn007.sqsh");
  CHECK(here("/a/%4n.sqsh", "12") == "/a/0012.sqsh");
}

TEST_CASE("save_path_patterns_follow_slurm") {
  CHECK(here("%j-%J-%s-%u-%A") == "42-42.3-3-ann-42");
  CHECK(here("%6j.%1j") == "000042.42");
  CHECK(here("%%j 100% %z %") == "%j 100% %z %");
  CHECK(here("%x") == "a_b");
  auto batch = kJob;
  batch.erase("SLURM_STEP_ID");
  CHECK(save_path_here("%J", batch) == "42.batch");
}

TEST_CASE("save_path_prefix_or_suffix_selects_oci_archive") {
  CHECK(parse_image_target("oci-archive:x").form == ImageForm::oci_archive);
  CHECK(parse_image_target("oci-archive:x").path == "x");
  CHECK(parse_image_target("x.tar").form == ImageForm::oci_archive);
  CHECK(parse_image_target("x.sqsh").form == ImageForm::squashfs);
  CHECK(parse_image_target("tar").form == ImageForm::squashfs);
}

TEST_CASE("tar_header_holds_any_file_size") {
  const std::string small = tar_header("blobs/sha256/x", 5);
  CHECK(small.size() == kTarHeaderBytes);
  CHECK(small.substr(124, 11) == "00000000005");
  const std::string large = tar_header("x", std::uint64_t{10} << 30);
  CHECK(large.substr(124, 12) == std::string("\x80\0\0\0\0\0\0\2\x80\0\0\0", 12));
  CHECK(tar_padding(512).empty());
  CHECK(tar_padding(513).size() == 511);
}
