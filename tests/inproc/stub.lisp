;;;; Unary calls: on whose thread, how they end, what they allocate and count.

(in-package #:clgrpc.tests.inproc)
(in-suite :clgrpc.inproc)

(test unary-handlers-run-on-the-callers-thread
  (let ((thread nil))
    (with-inproc (channel) (:ask (lambda (note call)
                                   (declare (ignore call))
                                   (setf thread sb-thread:*current-thread*)
                                   note))
      (lab.bench:ask channel (note 1))
      (is (eq sb-thread:*current-thread* thread))
      (lab.bench:ask channel (note 1) :timeout 10 :metadata '(("x-a" . "b")))
      (is (eq sb-thread:*current-thread* thread)))))

(test late-returns
  "The caller of a handler that computes past the deadline gets :deadline-exceeded, when the handler
asks or returns; the handler sees it when it asks."
  (let ((asked nil))
    (with-inproc (channel)
        (:ask (lambda (note call)
                (wait-until (lambda () (minusp (grpc:time-remaining call))))
                (when (plusp (number-of note))
                  (setf asked (list (grpc:call-status call) (grpc:cancelled-p call)
                                    (grpc:call-status call))))
                note))
      (is (eq :deadline-exceeded
              (status-of-error (caught (lab.bench:ask channel (note 0) :timeout 0.01)))))
      (is (null asked))
      (is (eq :deadline-exceeded
              (status-of-error (caught (lab.bench:ask channel (note 1) :timeout 0.01)))))
      (is (equal '(nil t :deadline-exceeded) asked)))))

(test limits-count-to-the-octet
  "A message as long as either end may send or receive passes, and one longer does not: requests and
answers, alone and in streams, which nobody serializes here."
  (let ((limit (clgrpc.protobuf:serialized-size (note 1 :body 100))))
    (loop for (options channel-options)
            in `((() (:max-send-octets ,limit)) (() (:max-receive-octets ,limit))
                 ((:max-receive-octets ,limit) ()) ((:max-send-octets ,limit) ()))
          do (with-inproc (channel :options options :channel-options channel-options)
                 (:ask (lambda (note call) (declare (ignore call)) note)
                  :chat #'echo)
               (flet ((lone (octets) (ask channel (note 1 :body octets)))
                      (streamed (octets) (numbers (chat channel (list (note 1 :body octets))))))
                 (is (= 1 (number-of (lone 100))))
                 (is (equal '(1) (streamed 100)))
                 (dolist (function (list #'lone #'streamed))
                   (let ((error (caught (funcall function 101))))
                     (is (eq :resource-exhausted (status-of-error error)))
                     (is (search (format nil "~D octets ~:[to send~;received~], limit ~D"
                                         (1+ limit)
                                         (or (getf options :max-receive-octets)
                                             (getf channel-options :max-receive-octets))
                                         limit)
                                 (princ-to-string error))
                         "~A" error))))))))

(test second-values-are-calls
  (with-inproc (channel)
      (:ask (lambda (note call)
              (when (= 1 (number-of note)) (setf (grpc:call-trailers call) '(("x-t" . "u"))))
              note))
    (dotimes (i 2)
      (let ((call (nth-value 1 (ask channel (note i)))))
        (is (eq :ok (grpc:call-status call)))
        (is (null (grpc:call-metadata call)))
        (is (equal (if (= i 1) '(("x-t" . "u")) '()) (grpc:call-trailers call)))
        (is (search "inproc:" (grpc:call-peer call)))
        (is (null (grpc:call-security call)))
        (is (null (grpc:cancel call)))
        (is (eq :ok (grpc:call-status call)))))))

(test errors-say-what-calls-were-at
  "Without times, but with the stage."
  (with-inproc (channel)
      (:ask (lambda (note call)
              (declare (ignore call))
              (when (= 1 (number-of note)) (grpc:fail :not-found "none"))
              note))
    (let ((error (caught (ask channel (note 1)))))
      (is (equal '(:stage :answer) (grpc:rpc-error-stages error)))
      (is (string= "waiting for the handler" (grpc:rpc-error-reason error)))
      (is (search "NOT_FOUND: none" (princ-to-string error)))
      (is (search "waiting for the handler" (princ-to-string error))))
    (let ((call (nth-value 1 (ask channel (note 2)))))
      (is (null (grpc:call-stages call))))))

(test nobody-to-call-is-told-at-one-end
  "There is no handler's end of a call that finds no server."
  (with-log ()
    (let ((before (grpc:tracers)))
      (grpc:with-channel (channel "inproc:nobody-here")
        (unwind-protect (progn (setf (grpc:tracers) "call")
                               (is (eq :unavailable
                                       (status-of-error (caught (ask channel (note 1)))))))
          (setf (grpc:tracers) before)))
      (is (equal '(:client) (mapcar (lambda (event) (getf event :role))
                                    (events-of :call-begun))))
      (is (equal '(:client) (mapcar (lambda (event) (getf event :role))
                                    (events-of :call-ended)))))))

(test unwinding-cancels
  "A caller that is made to leave, as by C-c, cancels the call and unwinds its handler."
  (let ((unwound nil) (status nil) (on-cancel nil))
    (with-inproc (channel)
        (:ask (lambda (note call)
                (declare (ignore note))
                (grpc:on-cancel call (lambda () (setf on-cancel t)))
                (unwind-protect (throw 'out 5)
                  (setf unwound t)
                  (grpc:after call 0 (lambda () (setf status :ran))))))
      (is (= 5 (catch 'out (ask channel (note 1)))))
      (is (eq t unwound))
      (is (eq t on-cancel))
      (is (null status)))))

(test answers-later
  "A unary handler that keeps its call is waited for."
  (with-inproc (channel) (:ask #'double-later)
    (is (= 4 (number-of (ask channel (note 2)))))
    (is (= 6 (number-of (ask channel (note 3) :timeout 20))))
    (is (= 6 (number-of (grpc:await (grpc:call-async #'lab.bench:ask channel (note 3))))))))

(test kept-calls-expire
  (let ((seen (make-signal)))
    (with-inproc (channel)
        (:ask (lambda (note call)
                (declare (ignore note))
                (grpc:on-cancel call (lambda () (signal-it seen)))
                call))
      (is (eq :deadline-exceeded
              (status-of-error (caught (lab.bench:ask channel (note 1) :timeout 0.1)))))
      (is (await-signal seen)))))

(defclass plain-bench (lab:bench) ())

(defmethod lab.bench:ask ((service plain-bench) note &key)
  note)

(test unary-calls-allocate-little
  "At most 170 octets beside the messages."
  (let ((channel (grpc:service-channel (make-instance 'plain-bench))))
    (let* ((note (note 1))
           (message (octets-consed (lambda () (grpc:copy-message note))))
           (whole (octets-consed (lambda () (lab.bench:ask channel note)))))
      (is (<= (- whole (* 2 message)) 170) "~,1F octets, ~,1F of them messages" whole
          (* 2 message)))))

(defun octets-consed (function)
  "The octets that FUNCTION allocates each time: the least of a few rounds."
  (declare (type function function))
  (loop repeat 5
        minimize (let ((before (sb-ext:get-bytes-consed)))
                   (loop repeat 100000 do (funcall function))
                   (/ (- (sb-ext:get-bytes-consed) before) 100000.0))))

(test shared-messages
  "They are the very same, if that is what one asks for."
  (let ((kept '()))
    (flet ((keep (note call)
             (declare (ignore call))
             (push note kept)
             note))
      (with-inproc (channel :channel-options '(:messages :share)) (:ask #'keep)
        (let ((note (note 1)))
          (is (eq note (ask channel note)))
          (is (eq note (first kept)))))
      (with-inproc (channel) (:ask #'keep)
        (let* ((note (note 1)) (reply (ask channel note)))
          (is (not (eq note (first kept))))
          (is (not (eq reply (first kept)))))))))

(test many-callers
  "Threads that call at once; every call is counted."
  (with-inproc (channel :server server) (:ask #'double)
    (let ((wrong (call-with-threads
                  20 (lambda (i)
                       (loop repeat 500
                             count (/= (* 2 i) (number-of (ask channel (note i)))))))))
      (is (every #'zerop wrong))
      (is (= 10000 (getf (grpc:server-statistics server) :calls))))))
