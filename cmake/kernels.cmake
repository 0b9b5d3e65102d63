# Our own CPU kernels, at -O3. They are libraries of their own, with precompiled headers of their own: GCC compiles whatever includes
# such a header at the header's level of optimization, not at its own.
function(plimsoll_kernels name)
  add_library(${name} OBJECT ${PLIMSOLL_KERNEL_SOURCES})
  target_include_directories(${name} PRIVATE include src)
  target_link_libraries(${name} PRIVATE plimsoll_flags OpenMP::OpenMP_CXX fmt::fmt)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O3> ${ARGN})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
  target_precompile_headers(${name} PRIVATE ${PLIMSOLL_PRECOMPILED})
endfunction()

if(NOT PLIMSOLL_SEVERAL)
  set(native "")
  if(PLIMSOLL_NATIVE)
    set(native -march=native)
  endif()
  plimsoll_kernels(plimsoll_kernels ${native})
  target_sources(plimsoll PRIVATE $<FILTER:$<TARGET_OBJECTS:plimsoll_kernels>,INCLUDE,[.]o$>)
  return()
endif()

# Compiled once for each of these instruction sets: the program takes those that the processor has (src/device/cpu/variants.cpp).
# Everything else is compiled for any processor.
#
# Templates and inline functions that the copies share with the rest must not be mixed up with it, since the linker would keep
# any one of them. So each copy is linked into one object, of which a single symbol can be seen.
set(PLIMSOLL_INSTRUCTION_SETS v3 v4)  # x86-64-v3 has AVX2, x86-64-v4 AVX-512
find_program(PLIMSOLL_OBJCOPY NAMES ${CMAKE_OBJCOPY} objcopy REQUIRED)
foreach(set ${PLIMSOLL_INSTRUCTION_SETS})
  set(copy plimsoll_kernels_${set})
  plimsoll_kernels(${copy} -march=x86-64-${set} $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
  target_compile_definitions(${copy} PRIVATE PLIMSOLL_OWN_KERNELS=own_kernels_${set})
  set(object ${CMAKE_BINARY_DIR}/${copy}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_LINKER} -r --force-group-allocation -o ${object}.all $<FILTER:$<TARGET_OBJECTS:${copy}>,INCLUDE,[.]o$>
    COMMAND ${PLIMSOLL_OBJCOPY} --wildcard --keep-global-symbol=*own_kernels_${set}* ${object}.all ${object}
    DEPENDS $<TARGET_OBJECTS:${copy}> COMMAND_EXPAND_LISTS VERBATIM)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_sources(plimsoll PRIVATE ${object})
endforeach()
set_source_files_properties(src/device/cpu/variants.cpp PROPERTIES COMPILE_DEFINITIONS PLIMSOLL_INSTRUCTION_SETS)
