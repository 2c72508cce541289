spc_unit_test(loader_test
  SOURCES loader_cache_test.cpp loader_edits_test.cpp loader_elf_test.cpp
  LIBS spc_hooks spc_json spc_base ${CMAKE_DL_LIBS})
spc_unit_test(mpi_abi_test SOURCES mpi_abi_test.cpp LIBS spc_hooks spc_json spc_base)
