;;;; Octets that a server keeps for a peer are charged to its connection, from their arrival to
;;;; their end; and a connection gives way when all hold too much.

(in-package #:clgrpc.tests.server)

(defun failure-of (link)
  "The text with which the server has ended LINK, or nil."
  (server::server-link-failure link))

(defun octets-charged (link)
  (account-sum (server::server-link-account link)))

(defun fat-fields (count)
  "COUNT headers that a peer has never indexed."
  (loop for i below count collect (list (format nil "a~D" i) "b")))

(defun begins-to-ask (id &key (method "Ask") (fields '()))
  "The peer begins a call of METHOD on stream ID, also with FIELDS, and sends no request."
  (memory:hears `(:headers ,id ((":method" "POST") (":scheme" "http")
                                (":path" ,(format nil "/lab.Bench/~A" method))
                                ("content-type" "application/grpc") ("te" "trailers")
                                ,@fields))))

(defun gets-plainly (id fields)
  "The peer begins a plain request on stream ID, with FIELDS in addition, and does not end it."
  (memory:hears `(:headers ,id ((":method" "GET") (":scheme" "http") (":path" "/") ,@fields))))

(test header-lists-of-open-calls-are-charged
  "Until the call ends, the charge is what RFC 9113 counts and 150 octets a field, twice for plain
requests."
  (with-server-loop (server-loop) (:ask #'double)
    (comes server-loop)
    (let* ((link (link-of memory:*end* server-loop))
           (before (octets-charged link)))
      (flet ((charged () (wire::link-held link)))
        (is (<= 2048 before 10000) "A new connection is charged with ~D octets." before)
        (begins-to-ask 1 :fields (fat-fields 100))
        (is (<= (* 100 180) (charged) (* 100 400)) "~D octets" (charged))
        (memory:hears '(:rst-stream 1 :cancel))
        (is (zerop (charged)) "~D octets are left" (charged))
        (gets-plainly 3 (fat-fields 100))
        (is (<= (* 100 360) (charged) (* 100 600)) "~D octets" (charged))
        (memory:hears '(:rst-stream 3 :cancel))
        (is (zerop (charged)) "~D octets are left" (charged))
        ;; those that are the same as before
        (loop for id from 5 below 25 by 2 do (begins-to-ask id :fields '(("x" "y"))))
        (is (zerop (charged)))))))

(test header-lists-have-so-many-fields
  "A list with one more field is treated as too large."
  (with-server-loop (server-loop :options '(:max-header-fields 20)) (:ask #'double)
    (comes server-loop)
    (begins-to-ask 1 :fields (fat-fields 15))
    (is (equal '() (memory:said)))
    (begins-to-ask 3 :fields (fat-fields 16))
    (is (equal '((:rst-stream 3 :enhance-your-calm)) (memory:said)))))

(test calls-that-hold-too-much-are-refused
  "A connection that holds little is served while another holds everything that all may hold."
  (with-server-loop (server-loop :options '(:max-total-held-octets 4000000 :max-receive-octets 10000
                                            :max-held-octets 100000000))
      (:ask #'double)
    (comes server-loop :peer "greedy")
    (let ((link (link-of memory:*end* server-loop)))
      (loop for id from 1 by 2 repeat 400
            do (begins-to-ask id :fields (fat-fields 100)))
      (is (<= 1000000 (octets-charged link) 3500000) "~D octets" (octets-charged link))
      (is (< 100 (count :resource-exhausted (statuses) :key #'second)))
      (comes server-loop :peer "other")
      (asks 1 "Ask" 21)
      (answered '(1 :ok))
      (is (null (failure-of link))))))

(test requests-that-do-not-end-stay-as-they-came
  "A whole message of a request without an end is charged as the octets that it has; it is decoded
when the end arrives."
  (with-server-loop (server-loop) (:ask #'double)
    (comes server-loop)
    (let* ((link (link-of memory:*end* server-loop))
           (request (coerce (note-octets 21 :body 5000) 'octets)))
      (begins-to-ask 1)
      (memory:hears `(:data 1 ,request))
      (let ((call (http2:stream-user (first (streams-of link)))))
        (is (null (server::server-call-request call)))
        (is-true (server::server-call-undecoded call))
        (is (<= 5000 (wire::wire-inbound-held (wire::call-wire-inbound call)) 6000)))
      (memory:said)
      (memory:hears '(:data 1 "" :end-stream))
      (answered '(1 :ok)))))

(defun streams-of (link)
  (let ((streams '()))
    (http2:map-streams (lambda (stream) (push stream streams)) (wire::link-http2 link))
    streams))

(test the-largest-user-gives-way
  "If all hold an eighth more than allowed, one connection ends: of the peer that holds most, the
connection that holds most."
  (with-server-loop (server-loop :options '(:max-total-held-octets 1000000)) (:ask #'double)
    (let ((links '()))
      (flet ((comes-with (peer octets)
               (comes server-loop :peer peer)
               (push (link-of memory:*end* server-loop) links)
               (memory:call-in-world
                memory:*world*
                (lambda () (charge-own (server::server-link-account (first links)) octets)))))
        (comes-with "a" 300000)
        (comes-with "b" 200000)
        (comes-with "b" 250000)
        (comes-with "c" 350000)
        (is (every #'null (mapcar #'failure-of links)))
        (comes-with "b" 100000)
        (memory:run-turns memory:*world*)
        (destructuring-bind (b3 c b2 b1 a) links
          (is (search "max-total-held-octets" (failure-of b2)))
          (is (equal '(nil nil nil nil) (mapcar #'failure-of (list a b1 b3 c)))))))))

(defmacro with-heap-of ((live) &body body)
  "Evaluate BODY while the part LIVE of the heap seems to be live, in small objects, and it is not
yet time to collect all garbage."
  `(call-with-heap-of ,live (lambda () ,@body)))

(defun call-with-heap-of (live function)
  (let* ((used (floor (* live (heap-size))))
         (spare (- (heap-size) (* 2 used))))
    (with-replaced (('heap-used (constantly used)) ('heap-spare (constantly spare)))
      (with-changed ((clgrpc.base::**next-search** (+ (monotonic-ns) (seconds-ns 1000))))
        (funcall function)))))

(test no-calls-begin-while-the-heap-is-full
  "Each new call examines the heap, so the next call begins once the heap is not full."
  (with-server-loop (server-loop) (:ask #'double)
    (comes server-loop)
    (setf server::**looked** (collection-epoch)
          server::**pressure** t)
    (with-heap-of (42/100)
      (asks 1 "Ask" 1)
      (is (member :resource-exhausted (mapcar #'second (statuses)))))
    (asks 3 "Ask" 21)
    (answered '(3 :ok))
    (is (not server::**pressure**))))

(test a-full-heap-ends-no-connection-that-holds-little
  "If almost no heap is left, and connections hold almost nothing of it, ending them would not
help."
  (with-server-loop (server-loop) (:ask #'double)
    (let ((server (server::server-loop-server server-loop)) (link nil))
      (flet ((look-with (octets)
               (memory:call-in-world
                memory:*world*
                (lambda () (charge-own (server::server-link-account link) octets)))
               (server::judge-heap t)
               (memory:run-turns memory:*world*)
               (and (failure-of link) :ended)))
        (enter-registry server server:**servers**)
        (unwind-protect
             (with-heap-of (46/100)     ; 2 % of the heap are missing to a free tenth
               (setf server::**pressure** nil)
               (comes server-loop)
               (setf link (link-of memory:*end* server-loop))
               (is (null (look-with 1000)))
               (is-true server::**pressure**)
               (is (null (look-with 0)))
               (is (eq :ended (look-with (floor (heap-size) 100)))))
          (setf server::**pressure** nil)
          (quit-registry server server:**servers**))))))

(test connections-do-not-keep-up-the-memory-pressure
  "Peers that hold no more than allowed, in a heap that the program has half filled, would keep out
all others. If they hold enough, the largest user gives way once two looks have found memory
pressure; else no connection does."
  (with-server-loop (server-loop) (:ask #'double)
    (let ((server (server::server-loop-server server-loop)) (links '()))
      (flet ((comes-with (octets)
               (comes server-loop :peer (format nil "~D" octets))
               (push (link-of memory:*end* server-loop) links)
               (memory:call-in-world
                memory:*world*
                (lambda () (charge-own (server::server-link-account (first links)) octets))))
             (look ()
               (server::judge-heap t)
               (memory:run-turns memory:*world*)
               (mapcar (lambda (link) (and (failure-of link) :ended)) links)))
        (enter-registry server server:**servers**)
        (unwind-protect
             (with-heap-of (42/100)     ; 4 % of the heap are missing, 2 % in copied objects
               (setf server::**pressure** nil)
               (comes-with 1000)
               (comes-with (floor (heap-size) 100))
               (is (equal '(nil nil) (look)))
               (is (equal '(nil nil) (look)) "Ending all connections would not help.")
               (comes-with (floor (heap-size) 80))
               (setf server::**pressure** nil)
               (is (equal '(nil nil nil) (look)))
               (is-true server::**pressure**)
               (is (equal '(:ended nil nil) (look))))
          (setf server::**pressure** nil)
          (quit-registry server server:**servers**))))))

(test a-peer-that-holds-little-is-not-refused-for-the-sake-of-others
  "The octets of others may be measured only later, and so exceed the limit without a refusal."
  (with-server-loop (server-loop :options '(:max-total-held-octets 6400000
                                            :max-receive-octets 100000))
      (:ask #'double)
    (comes server-loop :peer "greedy")
    (let ((greedy (link-of memory:*end* server-loop)))
      (memory:call-in-world memory:*world*
                            (lambda () (charge-own (server::server-link-account greedy) 6600000)))
      (comes server-loop :peer "modest")
      (let ((modest (link-of memory:*end* server-loop)))
        (memory:call-in-world memory:*world*
                              (lambda () (charge-own (server::server-link-account modest) 70000)))
        (begins-to-ask 1 :fields (fat-fields 10))
        (is (equal '() (memory:said)))
        (memory:call-in-world memory:*world*
                              (lambda () (charge-own (server::server-link-account modest) 30000)))
        (begins-to-ask 3 :fields (fat-fields 10))
        (is (equal '((3 :resource-exhausted)) (statuses)) "the peer holds a 64th of the limit")))))

(test a-call-without-metadata-is-not-charged-with-that-of-the-call-before
  (with-server-loop (server-loop) (:ask #'double)
    (comes server-loop)
    (let ((link (link-of memory:*end* server-loop)))
      (begins-to-ask 1 :fields (fat-fields 100))
      (let ((charged (wire::link-held link)))
        (is (< 4096 charged))
        (begins-to-ask 3)
        (begins-to-ask 5)
        (is (= charged (wire::link-held link)))))))
