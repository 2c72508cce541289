// A shared library or the loader's cache of an image: any content is read or refused, and the
// written form can be read again.

#include "hooks/loader/elf.hpp"
#include "hooks/loader/ld_cache.hpp"
#include "lib/memory_file.hpp"
#include "lib/property.hpp"

using namespace spc;
using namespace spc::fuzz;

namespace {

void look_at_cache(std::string_view bytes) {
  auto cache = LdCache::parse(std::string(bytes));
  if (!cache) return must_be_readable(cache.error());
  const std::size_t had = cache->entries().size();
  cache->add_first("libcuda.so.1", "/first/libcuda.so.1", 0x0303);
  cache->add_last("libcuda.so.1", "/last/libcuda.so.1", 0x0303);
  const auto again = LdCache::parse(cache->serialize());
  must(again.has_value(), "what is written can be read");
  must(again->entries().size() == had + 2, "no entry is lost");
  must(again->glibc_hwcaps() == cache->glibc_hwcaps(), "no extension is lost");
  must(again->find("libcuda.so.1", 0x0303)->path == "/first/libcuda.so.1",
       "what is first is found");
  const auto of_soname = again->of_soname("libcuda.so.1");
  must(!of_soname.empty() && of_soname.back().path == "/last/libcuda.so.1",
       "what is last comes last");
}

void look_at_library(std::string_view bytes) {
  const UniqueFd file = memory_file(bytes);
  const auto elf = read_elf(file.get());
  if (!elf) return must_be_readable(elf.error());
  must(elf_machine_of(file.get()) == elf->machine, "there is one machine");
  must(elf->needed.size() <= 4096 && elf->notes.size() <= 64, "lists have an end");
  for (const std::string* text : {&elf->soname, &elf->rpath, &elf->runpath}) {
    must(text->size() < 4096 && text->find('\0') == std::string::npos, "texts are texts");
  }
}

}  // namespace

FUZZ_TARGET(libraries) {
  look_at_cache(text_of(data, size));
  look_at_library(text_of(data, size));
  return 0;
}
