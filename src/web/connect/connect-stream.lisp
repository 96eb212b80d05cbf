;;;; Streams of Connect: messages in envelopes both ways. The last envelope of an answer has the
;;;; flag 2 and reports, as JSON, how the call ended, with the trailers.

(in-package #:clgrpc.connect)

(defconstant +end-of-stream+ 2 "The flag of the last envelope of an answer.")

(defun trailers-json (trailers)
  "TRAILERS, an alist, as a list for WRITE-JSON: each name once, with all of its values."
  (let ((members '()))
    (loop for (name . value) in (web:metadata-headers trailers)
          for member = (assoc name members :test #'string=)
          do (if member
                 (setf (cdr member) (concatenate 'vector (cdr member) (vector value)))
                 (push (cons name (vector value)) members)))
    (nreverse members)))

(defun end-json (call)
  "The content of the last envelope of CALL, which has ended, for WRITE-JSON."
  (multiple-value-bind (status text details trailers) (web:call-end call)
    `(,@(unless (eq :ok status) `(("error" . ,(web:error-json status text details))))
      ,@(and trailers `(("metadata" . ,(trailers-json trailers)))))))

(defun finish-stream (call)
  "The function FINISH of the protocol handler of streams."
  (web:finish-enveloped call (web:envelope +end-of-stream+ (web:json-octets (end-json call)))))

(define-load-time-global **stream**
    (web:make-protocol-handler :name :connect :receive #'web:receive-enveloped :whole #'identity
                               :begun #'web:await-head
                               :part #'web:write-enveloped :finish #'finish-stream))
