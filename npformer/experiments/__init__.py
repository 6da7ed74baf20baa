"""One file a question: a function that measures and returns numbers; `npformer.plots` draws them.

===================  ==========================================================================
file                 question
===================  ==========================================================================
`gradient_scale`     How do gradients and activations of Pre-LN and Post-LN scale with depth?
`theory`             What does mean-field theory say about it?
`theory_stack`       The stack of Xiong et al. (2020), section 3.3, that the theory describes.
`findings`           Which of it holds in a measurement, and which does not?
`inspection`         How large is what passes through a model, forward and back?
`attention_maps`     Where does a head look?
`rotation`           How fast do rotary positions turn?
`online_softmax`     How can a softmax be right before its whole row is known?
`attention_traffic`  How many numbers does attention read and write, in one piece and in blocks?
===================  ==========================================================================
"""
