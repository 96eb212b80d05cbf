;;;; Crowds: hundreds of connections of which each waits for a late answer, a small version of `make
;;;; bench-connections`. None may be lost or answered early, no thread may be held, and what the two
;;;; ends of a connection take of the heap, as the slope between few and many, has a bound.

(in-package #:clgrpc.tests.promise)
(in-suite :clgrpc.promise.memory)

(defconstant +few+ 50)
(defconstant +many+ 450 "With both ends here, fewer than the usual 1,024 descriptors.")
(defconstant +late-ms+ 200)
(defconstant +client-octets+ 1536 "What the clients of a crowd may take: plain sockets.")

(defun port-of (address)
  (parse-integer address :start (1+ (position #\: address :from-end t))))

(defun heap-octets ()
  (sb-ext:gc :full t)
  (sb-kernel:dynamic-usage))

(defun greeter-question ()
  "What a client of the greeter says first: all of a request, so that the connection asks at once."
  (let ((message (grpc:serialize (helloworld:make-hello-request
                                  :name (format nil "delay:~D" +late-ms+)))))
    (concatenate 'octets (ascii-octets "PRI * HTTP/2.0") #(13 10 13 10) (ascii-octets "SM")
                 #(13 10 13 10)
                 (dialogue:frames-octets
                  (dialogue:make-peer)
                  `((:settings) (:settings-ack)
                    (:headers 1 ((":method" "POST") (":scheme" "http")
                                 (":path" "/helloworld.Greeter/SayHello") (":authority" "x")
                                 ("content-type" "application/grpc") ("te" "trailers")))
                    (:data 1 ,(concatenate 'octets (list 0 0 0 0 (length message)) message)
                           :end-stream))))))

(defun trailers-whole-p (octets)
  "True if the frames in OCTETS end a stream with HEADERS."
  (loop with at = 0
        while (<= (+ at 9) (length octets))
        do (let ((end (+ at 9 (ash (u32be octets at) -8))))
             (when (< (length octets) end) (return nil))
             (when (and (= 1 (aref octets (+ at 3))) (logtest 1 (aref octets (+ at 4))))
               (return t))
             (setf at end))))

(defun join-crowd (loop port question answered-p count)
  "Open COUNT connections to PORT on LOOP that ask QUESTION. Once all have what ANSWERED-P, a
function of all octets that came, takes for the answer, return them and the least that one of them
took, in milliseconds."
  (let* ((answered (make-signal))
         (least most-positive-fixnum)
         (start-ns (monotonic-ns))
         (sockets (flet ((take (socket octets)
                           (let ((all (concatenate 'octets (async:socket-data socket) octets)))
                             (setf (async:socket-data socket) all)
                             (when (funcall answered-p all)
                               (setf (async:socket-data socket) nil
                                     least (min least (- (monotonic-ns) start-ns)))
                               (signal-it answered))))
                         (lose (condition) (report "a connection is lost: ~A" condition)))
                    (loop repeat count
                          collect (async:tcp-connect "127.0.0.1" port #'take :data question
                                                                             :loop loop
                                                                             :event-cb #'lose)))))
    (is-true (await-signal answered :count count) "all are answered")
    (values sockets (floor least 1000000))))

(defun check-crowd (name port question answered-p limit-octets connections)
  "Check that the server at PORT bears a crowd. LIMIT-OCTETS is what its end of a connection may
take of the heap; CONNECTIONS is a function that returns how many it has."
  (let ((loop (loop:make-event-loop :name "crowd")))
    (loop:launch-event-loop loop)
    (unwind-protect
         (let ((threads (length (sb-thread:list-all-threads))))
           (multiple-value-bind (sockets least-ms)
               (join-crowd loop port question answered-p +many+)
             (is (<= +late-ms+ least-ms) "none is answered early")
             (is (= +many+ (funcall connections)) "none is closed")
             (is (<= (length (sb-thread:list-all-threads)) (+ 2 threads)) "no threads wait")
             ;; buffers that the loops keep are there before and after
             (let ((octets (heap-octets)))
               (mapc #'async:close-socket (setf sockets (nthcdr +few+ sockets)))
               (setf sockets nil)
               (eventually (= +few+ (funcall connections)))
               (eventually (= +few+ (loop:event-loop-connections loop)))
               (let ((each (/ (- octets (heap-octets)) (- +many+ +few+))))
                 (report "crowd: ~A, ~D connections, ~,0F octets each at both ends"
                         name +many+ each)
                 (is (<= each (+ limit-octets +client-octets+)))))))
      (loop:stop-event-loop loop)
      (is-true (loop:join-event-loop loop)))))

(test crowd-of-calls
  (let ((server (grpc:start-server (make-instance 'clgrpc.examples:greeter) :execution :inline)))
    (flet ((connections () (getf (grpc:server-statistics server) :connections)))
      (unwind-protect
           (progn (check-crowd "gRPC" (port-of (grpc:server-address server)) (greeter-question)
                               #'trailers-whole-p 4096 #'connections)
                  (is-true (wait-until (lambda () (zerop (connections)))) "nothing is left of it"))
        (grpc:stop-server server :drain 0)))))

(test crowd-on-plain-sockets
  (let ((loop (loop:make-event-loop :name "late")) (answer (octets-of 1)))
    (loop:launch-event-loop loop)
    (unwind-protect
         (let ((server (async:tcp-server "127.0.0.1" 0
                                         (fn (socket _octets)
                                           (async:delay (lambda ()
                                                          (async:write-socket-data socket answer))
                                                        :time (/ +late-ms+ 1000) :loop loop))
                                         :loop loop)))
           (check-crowd "plain TCP" (async:server-port server) (octets-of 1 2 3)
                        (lambda (octets) (plusp (length octets))) 1536
                        (lambda () (loop:event-loop-connections loop))))
      (loop:stop-event-loop loop)
      (is-true (loop:join-event-loop loop)))))
