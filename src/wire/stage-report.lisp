;;;; The stages of a call on the wire, computed on demand from its marks (stage.lisp): the
;;;; operations UNSENT-OCTETS and STAGES of both ends. Each end has its own function for the names
;;;; and times of its stages.

(in-package #:clgrpc.wire)

(defun wire-unsent-octets (call)
  "The operation UNSENT-OCTETS."
  (let ((outbound (call-wire-outbound call))
        (stream (wire-call-stream call)))
    (+ (if outbound
           (+ (wire-outbound-unsent-octets outbound) (wire-outbound-outbox-octets outbound))
           0)
       (if stream (http2:stream-queued-octets stream) 0))))

;;; The plist

(defun messages-sent (call)
  (if (if (client-p call) (takes-one-p call) (answers-once-p call))
      (if (if (client-p call)
              (marked-p call :headers)
              (eq :ok (call-status call)))
          1
          0)
      (let ((outbound (call-wire-outbound call)))
        (if outbound (wire-outbound-spoken outbound) 0))))

(defun messages-received (call)
  (let ((inbound (call-wire-inbound call))
        (client (client-p call))
        (kind (rpc-method-kind (call-rpc-method call))))
    (cond ((not (or (eq kind :unary) (eq kind (if client :client-streaming :server-streaming))))
           (if inbound (wire-inbound-arrived inbound) 0))
          ((if client (eq :ok (call-status call)) (marked-p call :due)) 1)
          (t 0))))

(defconstant +shortest-told-ns+ 1000
  "The minimum duration in nanoseconds of a stage that is reported. Shorter stages are within one
turn of the loop.")

(defun list-stages (call spans connects)
  "The operation STAGES of CALL. SPANS returns the stages so far, a list of (stage . ns), oldest
first. The arguments of SPANS are CALL and three durations in nanoseconds, counted from CALL's
beginning. The first ends now or at CALL's end. The second ends at :HEADERS, and is nil before that
moment. The third ends at :ANSWER or :DUE, and is nil before that moment. CONNECTS is the number of
attempts to connect for which CALL has waited."
  (declare (type function spans))
  (let* ((born (wire-call-born-ns call))
         (marks (wire-call-marks call))
         (total (cond ((moment-ns marks :end))
                      ((zerop born) 0)  ; CALL's loop has not begun the call yet
                      (t (max 0 (- (operate now call) born))))))
    (append
     (list :total (ns-seconds total))
     (loop for (stage . ns) in (funcall spans call total (moment-ns marks :headers)
                                         ;; or :DUE, which shares its index
                                         (moment-ns marks :answer))
           when (>= ns +shortest-told-ns+)
             append (list stage (ns-seconds ns)))
     (when (plusp connects) (list :attempts connects))
     (when (call-rpc-method call)
       (list :messages-sent (messages-sent call) :messages-received (messages-received call)))
     (when (plusp (call-deadline call))
       (list :remaining (ns-seconds (- (call-deadline call) (+ born total))))))))
