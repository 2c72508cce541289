# The Container Device Interface: files, what counts of them, and what they come to.
spc_unit_test(cdi_test
  SOURCES cdi_files_test.cpp cdi_registry_test.cpp cdi_hook_test.cpp cdi_generate_test.cpp
  LIBS spc_hooks spc_json spc_base)
target_compile_definitions(cdi_test PRIVATE SPC_CDI_FILES="${CMAKE_CURRENT_SOURCE_DIR}/cdi")
