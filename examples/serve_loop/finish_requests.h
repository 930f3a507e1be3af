// What stands for the sampler of an engine: it knows which requests end with this step.
#ifndef FWDMETA_EXAMPLES_SERVE_LOOP_FINISH_REQUESTS_H_
#define FWDMETA_EXAMPLES_SERVE_LOOP_FINISH_REQUESTS_H_

#include <attention.h>

namespace serve_loop {

// stop[b] = 1 where the step brings slot b to its final length. Where the step was refused, *num_refused is set to the
// number of its tokens without a page; it lies in mapped host memory, so that the host sees it without waiting.
void finish_requests(const attention::Step& step, const int32_t* final_lengths, int64_t slots, uint8_t* stop,
                     int32_t* num_refused, cudaStream_t stream);

}  // namespace serve_loop

#endif  // FWDMETA_EXAMPLES_SERVE_LOOP_FINISH_REQUESTS_H_
