spc_unit_test(gpu_test
  SOURCES gpu_fake_choice_test.cpp gpu_fake_driver_test.cpp gpu_fake_golden_test.cpp gpu_fake_image_test.cpp gpu_rules_test.cpp
  LIBS spc_hooks spc_json spc_base)
target_compile_definitions(gpu_test PRIVATE SPC_GOLDEN_DIR="${CMAKE_CURRENT_SOURCE_DIR}/gpu")
