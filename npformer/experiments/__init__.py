"""One file a question: a function that measures and returns numbers; `npformer.plots` draws them.

===================  ==========================================================================
file                 question
===================  ==========================================================================
`gradient_scale`     How do gradients and activations of Pre-LN and Post-LN scale with depth?
`theory`             What does mean-field theory say about it?
`theory_stack`       The stack of Xiong et al. (2020), section 3.3, that the theory describes.
`findings`           Which of it holds in a measurement, and which does not?
===================  ==========================================================================
"""
