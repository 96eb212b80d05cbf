;;;; Unary calls of Connect: the body of the request is the message, that of the answer is the
;;;; answer, or the error as JSON with the HTTP status that its code has. Trailers are headers.

(in-package #:clgrpc.connect)

(defun write-answer (call encoded headers)
  "Write ENCODED, the answer of CALL, which has ended well, with HEADERS."
  (let* ((compressed (= 1 (aref (wire:encoded-octets encoded) 0)))
         (start wire:+prefix-octets+))
    (exchange:write-head (server:call-http-request call)
                         (web:heads-head (web:web-claim-heads (web:call-web-claim call))
                                         (and compressed (web:outgoing-encoding call)))
                         (web:answer-headers call headers)
                         (- (wire:encoded-length encoded) start))
    (web:write-encoded call encoded start t)))

(defun write-error (call status text details headers)
  "Write that CALL has ended with STATUS, TEXT and DETAILS, with HEADERS."
  (let ((body (web:json-octets (web:error-json status text details))))
    (exchange:write-head (server:call-http-request call)
                         (web:other-head (web:web-claim-heads (web:call-web-claim call))
                                         (server:status-http-status status) "application/json")
                         (web:answer-headers call headers)
                         (length body))
    (web:write-octets call body t)))

(defun finish-unary (call)
  "The FINISH of these styles."
  (multiple-value-bind (status text details headers) (web:call-end-in-head call)
    (let ((answer (shiftf (web:notes-answer (web:call-web-notes call)) nil)))
      (web:mark-headers call)
      (web:note-served call)
      (if (and answer (eq :ok status))
          (write-answer call answer headers)
          (write-error call (if (eq :ok status) :internal status) text details headers)))))

(define-load-time-global **unary**
    (web:complete-style
     (web:make-style :name :connect :receive #'web:receive-bare :whole #'web:body-whole
                     :part #'web:write-enveloped :finish #'finish-unary)))

;;; GET, for methods that say NO_SIDE_EFFECTS: the message is in the query

(defstruct (get-claim (:include web:web-claim) (:copier nil))
  "What a GET has said."
  (message (make-octets 0) :type octets :read-only t)) ; the request, decoded from the query

(defun ignore-body (call octets start end last)
  (declare (ignore call octets start end last)))

(defun deliver-query (call)
  "The WHOLE of the style of GETs."
  (let ((message (get-claim-message (web:call-web-claim call))))
    (web:deliver-body call message 0 (length message))))

(define-load-time-global **get**
    (web:complete-style
     (web:make-style :name :connect :receive #'ignore-body :whole #'deliver-query
                     :part #'web:write-enveloped :finish #'finish-unary)))
