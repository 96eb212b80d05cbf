;;;; Bare answers, of protocols whose only answer is the body of the response: an error is JSON,
;;;; with the status of HTTP, and trailers are headers.

(in-package #:clgrpc.web)

(defun write-bare-answer (call encoded headers)
  "Write ENCODED, the only answer of CALL, without its envelope, and HEADERS."
  (let ((compressed (= 1 (aref (wire:encoded-octets encoded) 0))))
    (exchange:write-head (server:call-http-request call)
                         (heads-head (web-claim-heads (call-web-claim call))
                                     (and compressed (wire:outgoing-encoding call)))
                         (answer-headers call headers)
                         (- (wire:encoded-length encoded) wire:+prefix-octets+))
    (write-encoded call encoded wire:+prefix-octets+ t)))

(defun write-bare-error (call http-status body headers)
  "Write HTTP-STATUS, HEADERS and BODY, JSON as octets, as the whole answer of CALL."
  (exchange:write-head (server:call-http-request call)
                       (other-head (web-claim-heads (call-web-claim call))
                                   http-status "application/json")
                       (answer-headers call headers)
                       (length body))
  (write-octets call body t))

(defun finish-bare (call write-answer write-error)
  "Write the answer of CALL, which has ended and has a single answer. If CALL has ended with :ok,
call WRITE-ANSWER with CALL, the answer and its headers; else call WRITE-ERROR with CALL and the
values of CALL-END-IN-HEAD."
  (declare (type function write-answer write-error))
  (multiple-value-bind (status text details headers) (call-end-in-head call)
    (let ((answer (shiftf (notes-answer (call-web-notes call)) nil)))
      (mark-headers call)
      (server:note-served call)
      (if (and answer (eq :ok status))
          (funcall write-answer call answer headers)
          (funcall write-error
                   call (if (eq :ok status) :internal status) text details headers)))))
