(in-package #:clgrpc.tests.tools)

(defmacro with-offer ((channel name) &body body)
  "Run BODY with CHANNEL to a server of what `serve NAME` serves, each method where it runs there."
  `(multiple-value-bind (services execution)
       (tools::offered-services (tools::parse-services ,name))
     (examples:with-service (,channel services :execution execution) ,@body)))

(test all-of-bench-is-inline
  (multiple-value-bind (services execution)
      (tools::offered-services (tools::parse-services "bench"))
    (is (= 2 (length services)))
    (is (every (lambda (entry) (eq :inline (cdr entry))) execution))
    (is (assoc 'routeguide.route-guide:route-chat execution))
    (is (assoc 'bench-methods:streaming-call execution))))

(test bench-route-guide
  (with-offer (channel "bench")
    (is (string= "Berkshire Valley Management Area Trail, Jefferson, NJ, USA"
                 (routeguide:feature-name
                  (routeguide.route-guide:get-feature
                   channel (examples:place 409146138 -746188906) :timeout 10))))
    (loop for (count . corners) in '((100 400000000 -750000000 420000000 -730000000)
                                     (100 420000000 -730000000 400000000 -750000000)
                                     (1 400000000 -746188906 420000000 -746188906)
                                     (1 409146138 -750000000 409146138 -730000000)
                                     (0 409146139 -750000000 409146139 -730000000))
          do (is (= count (length (examples:feature-names
                                   channel (apply #'examples:rectangle corners))))
                 "~S" corners))
    (let ((summary (routeguide.route-guide:record-route
                    channel (list (examples:place 0 0) (examples:place 0 10000000)) :timeout 10)))
      (is (= 2 (routeguide:route-summary-point-count summary)))
      (is (= 0 (routeguide:route-summary-feature-count summary)))
      (is (= 111195 (routeguide:route-summary-distance summary))))
    (is (= 2 (routeguide:route-summary-feature-count
              (routeguide.route-guide:record-route
               channel (list (examples:place 409146138 -746188906) (examples:place 0 0)
                             (examples:place 409146138 -746188906))
               :timeout 10))))
    (is (= 0 (routeguide:route-summary-point-count
              (routeguide.route-guide:record-route channel '() :timeout 10))))))

(test bench-route-chat-echoes
  (with-offer (channel "bench")
    (let ((notes (loop for i below 1000
                       for place = (examples:place 1 (mod i 3))
                       collect (routeguide:make-route-note :message (princ-to-string i)
                                                           :location place)))
          (heard '()))
      (dotimes (round 2)                ; nothing is remembered from the first
        (setf heard '())
        (grpc:do-messages (note (routeguide.route-guide:route-chat channel notes :timeout 20))
          (push note heard))
        (is (= 1000 (length heard)))
        (is (every #'grpc:message= notes (reverse heard)))))))

(defun simple-request (size)
  (testing:make-simple-request :response-size size))

(defun body-size (response)
  (length (testing:payload-body (testing:simple-response-payload response))))

(test bench-service
  (with-offer (channel "bench")
    (dolist (size '(0 1 32 100000))
      (is (= size (body-size (bench-methods:unary-call channel (simple-request size)
                                                       :timeout 10)))))
    (signals grpc:invalid-argument
      (bench-methods:unary-call channel (simple-request -1) :timeout 10))
    (signals grpc:invalid-argument
      (bench-methods:unary-call channel (simple-request (1- (expt 2 31))) :timeout 10))
    (signals grpc:unimplemented
      (bench-methods:streaming-from-client channel (list (simple-request 1)) :timeout 10))
    (grpc:with-call (call (bench-methods:streaming-call channel :open :timeout 10))
      (dotimes (size 100)
        (grpc:send call (simple-request size))
        (is (= size (body-size (grpc:receive call)))))
      (grpc:close-send call)
      (is (null (grpc:receive call))))))

(test bench-route-chat-holds-back
  "A peer that sends and does not read is not read any more, so nothing piles up."
  (with-offer (channel "bench")
    (let* ((octets 0)
           (limit (* 32 1024 1024))
           (text (make-string 65536 :initial-element #\x :element-type 'base-char))
           (note (routeguide:make-route-note :message text)))
      (grpc:with-call (call (routeguide.route-guide:route-chat channel :open :timeout 2))
        (signals grpc:deadline-exceeded
          (loop while (< octets limit)
                do (grpc:send call note)
                   (incf octets (length text))))
        (is (< octets limit))))))

(test bench-route-chat-goes-on
  "A peer that reads late gets all."
  (with-offer (channel "bench")
    (let* ((count 300)
           (text (make-string 65536 :initial-element #\x :element-type 'base-char))
           (notes (loop repeat count collect (routeguide:make-route-note :message text)))
           (call (routeguide.route-guide:route-chat channel notes :timeout 60)))
      (is (= count (let ((heard 0))
                     (grpc:do-messages (note call heard)
                       (when (= (length text) (length (routeguide:route-note-message note)))
                         (incf heard)))))))))
