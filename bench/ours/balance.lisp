;;;; The cost of balancing and retries for a client, paired in one run: blocking unary calls to
;;;; three servers of other processes, in alternate blocks on a channel by pick_first and one by
;;;; round_robin, then one with a retry policy and throttling. Prints CPU seconds of the calling
;;;; thread, which drives the client's loop, and octets consed for a call of each, and the ratio of
;;;; the medians.
;;;;
;;;;   CLGRPC_ADDRESSES=HOST:PORT,… sbcl --non-interactive --load scripts/load.lisp \
;;;;     --load bench/ours/balance.lisp
;;;;
;;;; with the addresses of three servers of `clgrpc serve`.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tools")

(defpackage #:clgrpc.bench.balance
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc) (#:client #:clgrpc.client) (#:config #:clgrpc.config)
                    (#:base #:clgrpc.base)))

(in-package #:clgrpc.bench.balance)

(defun thread-cpu-ns ()
  "The CPU time of this thread, by CLOCK_THREAD_CPUTIME_ID."
  (multiple-value-bind (seconds ns) (sb-unix::clock-gettime 3)
    (+ (* seconds 1000000000) ns)))

(defun measure-block (channel count)
  "CPU nanoseconds and octets consed of a call, over COUNT calls on CHANNEL."
  (let ((request (routeguide:make-point :latitude 409146138 :longitude -746188906))
        (cpu (thread-cpu-ns))
        (octets (sb-ext:get-bytes-consed)))
    (loop repeat count do (routeguide.route-guide:get-feature channel request))
    (list (/ (- (thread-cpu-ns) cpu) count 1d0)
          (/ (- (sb-ext:get-bytes-consed) octets) count 1d0))))

(defun median (numbers)
  (let ((sorted (sort (copy-list numbers) #'<)))
    (elt sorted (floor (length sorted) 2))))

(defparameter *retry-config*
  "{\"methodConfig\":[{\"name\":[{}],~
    \"retryPolicy\":{\"maxAttempts\":4,\"initialBackoff\":\"0.1s\",\"maxBackoff\":\"1s\",~
    \"backoffMultiplier\":2,\"retryableStatusCodes\":[\"UNAVAILABLE\"]}}],~
    \"retryThrottling\":{\"maxTokens\":10,\"tokenRatio\":0.1}}")

(defun report-calls (addresses name options &key (blocks 40) (count 2000))
  "Compare the channel NAME, to ADDRESSES with OPTIONS, with a channel by pick_first."
  (let ((target (format nil "ipv4:~{~A~^,~}" addresses)))
    (grpc:with-channel (first target :balance :pick-first)
      (let ((other (apply #'grpc:make-channel target options)))
        (loop repeat 3 do (measure-block first count) (measure-block other count))
        (let ((rows (loop repeat blocks
                          collect (append (measure-block first count)
                                          (measure-block other count)))))
          (destructuring-bind (first-ns first-octets other-ns other-octets)
              (loop for i below 4 collect (median (mapcar (lambda (row) (elt row i)) rows)))
            (format t "pick_first  ~,0F ns, ~,0F octets a call~%" first-ns first-octets)
            (format t "~11A ~,0F ns, ~,0F octets a call~%" name other-ns other-octets)
            (format t "ratio ~,3F of medians, ~,3F median of pairs, ~,0@F octets~%"
                    (/ other-ns first-ns)
                    (median (mapcar (lambda (row) (/ (third row) (first row))) rows))
                    (- other-octets first-octets))))
        (grpc:close-channel other)))))

(let ((addresses (uiop:split-string (uiop:getenv "CLGRPC_ADDRESSES") :separator ",")))
  (report-calls addresses "round_robin" '(:balance :round-robin))
  (report-calls addresses "retryPolicy" (list :service-config (format nil *retry-config*))))
