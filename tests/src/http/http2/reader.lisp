;;;; See src/http/http2/reader.lisp; the effect of each frame is in tests/support/dialogue/, bad
;;;; input in tests/whole/fuzz/http2.lisp.

(in-package #:clgrpc.tests.http2)

(defun session-octets ()
  "A valid session, as a client sends it."
  (concatenate 'octets *preface*
    (frames-octets (make-peer)
                   '((:settings (:initial-window-size 70000) (:max-frame-size 20000))
                     (:settings-ack) (:headers 1 :post) (:data 1 "hello" (:pad 5)) (:data 1 50)
                     (:priority 1 0) (:headers 1 :done :end-stream)
                     (:headers 3 :get :end-stream (:pad 3)) (:ping 1)
                     (:headers 5 :post (:depends 3)) (:rst-stream 5 :cancel)
                     (:window-update 3 100) (:window-update 0 100)
                     (:headers 7 :post) (:data 7 "" :end-stream) (:goaway 0 :no-error)))))

(defun events-of (octets cuts)
  "A server's events for OCTETS that arrive in pieces ending at CUTS, and the server's output."
  (let ((*dialogue* (begin-dialogue :server '()))
        (start 0))
    (dolist (cut (append cuts (list (length octets))))
      (incf start (tells (subseq octets start cut))))
    (is (= start (length octets)))
    (values (clgrpc.tests.dialogue:dialogue-events *dialogue*) (flush))))

(test what-a-peer-speaks-that-is-not-http2
  "The error names HTTP/1.1 and TLS; for anything else it names the expected octets."
  (flet ((complaint (role octets)
           (let ((end (connect-end role)))
             (give end octets)
             (h2::connection-error-text (end-connection end)))))
    (flet ((names-p (name octets)
             (equal (format nil "the peer speaks ~A, not HTTP/2" name) (complaint :client octets))))
      (dolist (text '("HTTP/1.1 400 Bad Request" "HTTP/1.0 200 OK" "GET / HTTP/1.1" "POST /a HTTP"
                      "HEAD / HTTP/1.1" "PUT /abcdefgh" "OPTIONS * HTTP/1.1"))
        (is (names-p "HTTP/1.1" (ascii-octets text)) "~A" text))
      (loop for (type version tls) in '((22 3 t) (21 3 t) (20 3 nil) (23 3 nil) (22 2 nil))
            do (is (eq tls (names-p "TLS" (coerce (list type version 1 0 5 1 0 0 1 0) 'octets)))
                   "~D ~D" type version)))
    (is (equal "the first frame is not SETTINGS"
               (complaint :client (frames-octets (make-peer) '((:ping 1))))))
    (is (equal "not an HTTP/2 client preface" (complaint :server (ascii-octets "PRI * HTTP/1"))))
    (is (equal "the peer speaks HTTP/1.1, not HTTP/2"
               (complaint :server (ascii-octets "GET / HTTP/1.1"))))
    ;; wherever they begin
    (is (equal "HTTP/1.1" (h2::foreign-protocol (ascii-octets "PRIGET / HTTP/1.1") 3 17)))
    (is (null (h2::foreign-protocol (ascii-octets "GET / HTTP/1.1") 3 14)))))

(test cuts-make-no-difference
  "A session has the same effect wherever its octets are cut."
  (with-random (cuts-make-no-difference)
    (let* ((octets (session-octets))
           (whole (events-of octets '())))
      (is (< 10 (length whole)))
      (loop repeat 100
            do (is (equalp whole (events-of octets
                                            (sort (loop repeat 5 collect (random (length octets)))
                                                  #'<))))))))

(test octets-elsewhere
  "A session may begin anywhere in the given octets, and the octets after it are not examined."
  (let* ((session (session-octets))
         (octets (concatenate 'octets (octets-of 1 2 3) session (octets-of 0 0 1)))
         (end (connect-end :server)))
    (is (= (+ 3 (length session))
           (h2:receive-octets (end-connection end) octets 3 (+ 3 (length session)) 0)))
    (is (not (h2:connection-closed-p (end-connection end))))))

(test short-data-frames-join
  "Short DATA frames join the frame of their stream before them, and reach the sink with it, as one
that is not longer than the largest frame. Frames of other streams and kinds, long ones, empty ones
and those with flags join no frame, and no frame joins empty ones and those with flags."
  (flet ((lengths (&rest frames)
           (loop for (kind nil content) in (reverse
                                            (events-of
                                             (concatenate 'octets *preface*
                                               (frames-octets (make-peer)
                                                              `((:settings) (:headers 1 :post)
                                                                (:headers 3 :post) ,@frames)))
                                             '()))
                 when (eq kind :data) collect (if (integerp content) content (length content))))
         (data (count octets) (loop repeat count collect `(:data 1 ,octets))))
    (is (equal '(900) (apply #'lengths (data 100 9))))
    (is (equal '(16384 256) (apply #'lengths (data 65 256))))
    (is (equal '(356 357) (lengths '(:data 1 100) '(:data 1 256) '(:data 1 257)
                                       '(:data 1 100))))
    (dolist (between '((:data 1 "") (:ping 1) (:priority 1 0) (:window-update 1 100)))
      (is (equal '(3 5) (lengths '(:data 1 1) '(:data 1 2) between '(:data 1 5))) "~A" between))
    (is (equal '(1 2 3) (lengths '(:data 1 1) '(:data 3 2) '(:data 1 3))))
    (is (equal '(1 2 3) (lengths '(:data 1 1) '(:data 1 2 (:pad 3)) '(:data 1 3))))
    (is (equal '(3 3) (lengths '(:data 1 1) '(:data 1 2) '(:data 1 3 :end-stream))))))

(defun random-data-forms ()
  "Frames of a client with mostly short DATA on three streams. Some streams have a content-length,
and some frames exceed that or a window, or are not allowed at all."
  (flet ((data (id most &rest options) `(:data ,id ,(random-octets (random most)) ,@options)))
    (append
     (loop for id in '(1 3 5)
           collect `(:headers ,id (,@(field-set :post)
                                   ,@(when (zerop (random 3))
                                       `(("content-length" ,(princ-to-string (random 3000))))))))
     (loop with id = 1
           repeat (random 300)
           when (zerop (random 8)) do (setf id (aref #(1 3 5) (random 3)))
           collect (case (random 600)
                     (0 (data 7 9))
                     (1 '(:data 1 16385))
                     (2 `(:frame 0 8 ,id ,(octets-of 3 1 2)))
                     (3 `(:rst-stream ,id :cancel))
                     (4 `(:headers ,id :done :end-stream))
                     (5 (data id 300 :end-stream))
                     ((6 7) (data id 1))
                     ((8 9) '(:ping 1))
                     (t (case (random 20)
                          (0 `(:data ,id ,(random-octets (aref #(16384 256 257) (random 3)))))
                          (1 (data id 300 '(:pad 9)))
                          (t (data id 300)))))))))

(defun merged (events)
  "EVENTS, the newest first, in their order, with DATA of a stream that follow each other as one."
  (let ((merged '()))
    (dolist (event (reverse events) (reverse merged))
      (destructuring-bind (kind &optional id content end-p) event
        (if (and (eq :data kind) (eq :data (first (first merged))) (eql id (second (first merged))))
            (push (list kind id (concatenate 'string (third (pop merged)) content) end-p) merged)
            (push event merged))))))

(test frames-that-join-mean-what-they-mean-alone
  "Random DATA is delivered and answered alike in one read, in which short frames join, in any
reads, and one frame at a time, also before a frame that is refused."
  (with-random (frames-that-join-mean-what-they-mean-alone)
    (let ((clgrpc.tests.dialogue::*most-shown* 100000))
      (loop repeat 100
            do (let* ((peer (make-peer))
                      (frames (list* (frames-octets peer '((:settings)))
                                     (loop for form in (random-data-forms)
                                           collect (frames-octets peer (list form)))))
                      (octets (apply #'concatenate 'octets *preface* frames))
                      (ends (loop with at = (length *preface*)
                                  for frame in frames collect (incf at (length frame)))))
                 (flet ((outcome (cuts)
                          (multiple-value-bind (events output) (events-of octets cuts)
                            (list (merged events) output))))
                   (let ((alone (outcome ends)))
                     (is (equalp alone (outcome '())))
                     (is (equalp alone (outcome (sort (loop repeat (random 9)
                                                            collect (random (length octets)))
                                                      #'<)))))))))))

(test frames-by-and-by
  "A session has the same effect if a few frames are taken at a time; the position is that of a
frame, and the second value is true if there may be another."
  (let* ((octets (session-octets))
         (whole (events-of octets '())))
    (dolist (frames '(1 2 7))
      (let ((*dialogue* (begin-dialogue :server '()))
            (at 0) (rounds 0))
        (loop
          (multiple-value-bind (next more)
              (h2:receive-octets (connection) octets at (length octets) 0 frames)
            (incf rounds)
            (setf at next)
            (unless more (return))))
        (is (= at (length octets)))
        (is (<= (/ 10 frames) rounds))
        (is (equalp whole (clgrpc.tests.dialogue:dialogue-events *dialogue*)))))))
