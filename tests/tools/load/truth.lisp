;;;; Latencies of an open loop are true: against a server of known delays they are what theory says,
;;;; and what the server itself has noted. The tolerance is that of the issue, 2 % or 20 µs,
;;;; whichever is more, beyond what the transport adds, which is measured with no delay.
;;;;
;;;; This machine has other things to do, and has threads wait that should run. So there are several
;;;; rounds, and one must be true at all quantiles at once. A round counts only if tool and server
;;;; were on time, as both of them note; if there are none such the test is skipped.

(in-package #:clgrpc.tests.load)

(defparameter *true-rounds* 3 "If so many rounds that count are not true, the tool is not.")
(defparameter *most-rounds* 8)

(defun truth-run (address rate count)
  (load:perform-run (plan-for address :rate rate :total count :group-ns 0
                                      :data "{\"latitude\": {{.RequestNumber}}}")))

(defun base-latency (rate)
  "What a call at RATE takes without a delay, the median."
  (call-with-known-server (fn (address answered _late)
                            (load:histogram-quantile
                             (load:run-latency (truth-run address rate (length answered))) 1/2))
                          (constant-delay 0) 200))

(defun noted-latencies (run answered rate)
  "How long each call of RUN took by the times that its server has ANSWERED, sorted."
  (sort (loop for answer across answered
              for number from 0
              collect (- answer (+ (load:run-started-unix-ns run) (floor (* number 1000000000)
                                                                         rate))))
        #'<))

(defun near-p (found wanted)
  (<= (abs (- found wanted)) (max 20000 (* 2/100 wanted))))

(defun untruths (run shares wanted &key (slack 0))
  "Where the quantiles of RUN at SHARES are not what WANTED, a function of a share, returns, nor
between that and SLACK more."
  (loop for share in shares
        for found = (load:histogram-quantile (load:run-latency run) share)
        for exact = (funcall wanted share)
        unless (or (near-p found exact) (<= exact found (+ exact slack)))
          collect (format nil "p~F is ~,1F µs, not ~,1F" (* 100 share) (/ found 1d3)
                          (/ exact 1d3))))

(defun punctual-p (run late least-ns)
  "True if 99 of 100 calls and answers were late by less than half of what a latency of LEAST-NS may
be wrong."
  (< (max (load:histogram-quantile (load:run-lateness run) 99/100)
          (load:histogram-quantile late 99/100))
     (max 10000 (/ least-ns 100))))

(defun truth-round (make-delay shares rate count)
  "A round: what of it is not true, texts, and whether it counts."
  (multiple-value-bind (due quantile) (funcall make-delay)
    (let ((base (base-latency rate)))
      (call-with-known-server
       (lambda (address answered late)
         (let* ((run (truth-run address rate count))
                (noted (coerce (noted-latencies run answered rate) 'vector)))
           (values (append (untruths run shares (lambda (share) (+ base (funcall quantile share))))
                           ;; from the server's note on there is the way back, at most all the base
                           (untruths run shares
                                     (lambda (share) (exact-quantile noted share)) :slack base))
                   (punctual-p run late (funcall quantile (first shares))))))
       due count))))

(defun check-truth (name make-delay shares rate count)
  "Check that what is told of COUNT calls at RATE to a server with the delay that MAKE-DELAY makes is
true, at SHARES by theory."
  (let ((complaints '()))
    (loop repeat *most-rounds*
          while (< (length complaints) *true-rounds*)
          do (multiple-value-bind (untruths counts) (truth-round make-delay shares rate count)
               (when (null untruths)
                 (pass)
                 (return-from check-truth))
               (when counts (push untruths complaints))))
    (if (< (length complaints) *true-rounds*)
        (support:skip-on-slow-machine "~A: of ~D rounds ~D were on time" name *most-rounds*
                                      (length complaints))
        (fail "~A: ~{~{~A~^, ~}~^; ~}" name complaints))))

(test constant-delays-are-told-truly
  (check-truth "50 ms" (lambda () (constant-delay 50000000)) '(1/2 9/10 99/100) 500 400))

(test exponential-delays-are-told-truly
  (check-truth "exponential, mean 20 ms" (lambda () (exponential-delay 20000000 1000))
               '(1/4 1/2 3/4 9/10 95/100 99/100) 500 1000))

(test stalls-are-told-truly
  "A stall for a tenth of the time shows in a tenth of the calls; so would one of a second in each
ten. One call more or less moves a quantile by half a millisecond, so none is looked at for which
that is too much."
  (check-truth "a stall of 100 ms each second" (lambda () (stalling 1000000000 100000000))
               '(94/100 95/100 97/100 99/100) 1000 2000))

(test an-open-loop-omits-nothing
  "A server that stalls for 400 ms in a second of calls shows in four calls of ten, evenly from 400
ms down to nothing, though its answers are quick otherwise."
  (let ((begin nil) (lock (sb-thread:make-mutex)))
    (with-moody-server (address (number)
                         (let ((now (base:monotonic-ns)) (left 0))
                           (sb-thread:with-mutex (lock)
                             (unless begin (setf begin now))
                             (let ((at (- now begin)))
                               (when (<= 300000000 at 700000000)
                                 (setf left (- 700000000 at)))))
                           (when (plusp left) (sleep (/ left 1d9)))))
      (let* ((run (load:perform-run (plan-for address :rate 100 :total 100)))
             (latency (load:run-latency run)))
        (is (equal '("OK" 100) (statuses-of run)))
        ;; of 100 calls, 40 wait from 0 to 400 ms: the 80th percentile is the middle of these
        (is (< 150 (/ (load:histogram-quantile latency 80/100) 1000000) 260))
        (is (< 350 (/ (load:histogram-quantile latency 99/100) 1000000) 450))
        (is (< (/ (load:histogram-quantile latency 50/100) 1000000) 50))))))
