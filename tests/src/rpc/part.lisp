;;;; The parts of a call: made when they are needed, and once, whichever thread is first.

(in-package #:clgrpc.tests.rpc)

(test parts-are-made-when-needed
  (let ((call (new-call)))
    (is (null (rpc::call-parts call)))
    (is (null (rpc::call-inbound call)) "a look-up makes nothing")
    (is (null (rpc::call-parts call)))
    (let ((inbound (rpc::ensure-inbound call)))
      (is (eq inbound (rpc::call-inbound call)))
      (is (eq inbound (rpc::ensure-inbound call)))
      (is (null (rpc::call-outbound call)) "only the requested part is made")
      (is (null (rpc::call-callbacks call)))
      (is (null (rpc::call-ending call)))
      (is (null (rpc::call-own-options call))))))

(test parts-are-made-once
  "Threads that need a part of one call at the same time get the same part."
  (loop repeat 200
        do (let* ((call (new-call))
                  (go (sb-thread:make-semaphore))
                  (threads (loop repeat 3
                                 collect (in-thread
                                           (sb-thread:wait-on-semaphore go :timeout 20)
                                           (rpc::ensure-own-options call)))))
             (sb-thread:signal-semaphore go 3)
             (let ((options (mapcar #'sb-thread:join-thread threads)))
               (unless (and (first options)
                            (every (lambda (own) (eq own (rpc::call-own-options call))) options))
                 (fail "one call has got two sets of own options")
                 (return)))
             (is (eq (rpc::call-own-options call) (rpc::ensure-own-options call))))))
