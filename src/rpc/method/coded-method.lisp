;;;; Methods whose messages are in a codec (encoding/message-codec.lisp). A coded method equals the
;;;; method from which it is made except for its message types, which are coded types
;;;; (protobuf/types/raw-message.lisp).

(in-package #:clgrpc.method)

(defun method-in-codec (method codec)
  "METHOD with its messages in CODEC; METHOD itself if its messages already are in CODEC, or if
CODEC is nil. Each call returns the same object, unless several threads call at the same time."
  (cond ((or (null codec) (eq codec (rpc-method-codec method))) method)
        ((cdr (assoc codec (rpc-method-coded method))))
        (t (let ((coded (copy-structure method)))
             (setf (rpc-method-codec coded) codec
                   (rpc-method-coded coded) '()
                   (rpc-method-route coded) nil
                   (rpc-method-request-type coded)
                   (type-in-codec (rpc-method-request-type method) codec)
                   (rpc-method-response-type coded)
                   (type-in-codec (rpc-method-response-type method) codec))
             (push (cons codec coded) (rpc-method-coded method))
             coded))))
