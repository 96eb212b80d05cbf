;;;; See src/http/http2/stream-table.lisp.

(in-package #:clgrpc.tests.http2)

(test table-grows-and-shrinks
  "Streams are found, whatever is added and removed around them."
  (with-random (table-grows-and-shrinks)
    (let* ((end (connect-end :server))
           (connection (end-connection end))
           (live '()))
      (loop for id from 1 below 4000 by 2
            do (setf (h2::connection-highest-id connection) id)
               (push (h2::take-stream connection id) live)
               (when (zerop (random 3))
                 (let ((stream (nth (random (length live)) live)))
                   (setf live (delete stream live))
                   (h2::remove-stream connection stream))))
      (is (= (length live) (h2:connection-stream-count connection)))
      (is (every (lambda (stream) (eq stream (h2::find-stream connection (h2:stream-id stream))))
                 live))
      (is (null (h2::find-stream connection 5001)))
      (let ((ids '()))
        (h2:map-streams (lambda (stream) (push (h2:stream-id stream) ids)) connection)
        (is (equal (reverse ids) (sort (mapcar #'h2:stream-id live) #'<)))))))

(defun longest-chain (connection)
  (loop for chain across (h2::connection-table connection)
        maximize (loop for stream = chain then (h2::stream-next stream)
                       while stream count t)))

(test chosen-identifiers-share-no-chain
  "A client chooses the identifiers of its streams, but not the chains in which they are searched."
  (dolist (step '(2 4 64 2048 4096 65536 1000000))
    (let ((connection (end-connection (connect-end :server))))
      (loop for i below 1000
            do (h2::take-stream connection (1+ (* i step))))
      (is (<= (longest-chain connection) (if (= step 2) 1 40)) "~D apart: ~D" step
          (longest-chain connection)))))

(test quiet-connections-shrink
  (let ((*dialogue* (begin-dialogue :client '())))
    (shake-hands)
    (let* ((stream (request :get :end t))
           (connection (h2:stream-connection (find-stream stream))))
      (h2:shrink-connection connection)
      (is (plusp (length (h2::connection-table connection))) "an open stream needs the table")
      (hears `(:headers ,stream ((":status" "200") ("x-letter" "a")) :end-stream))
      ;; what comes several times is remembered
      (dotimes (i 3)
        (hears `(:headers ,(request :get :end t) ((":status" "200") ("x-letter" "a"))
                          :end-stream)))
      (h2:shrink-connection connection)
      (is (zerop (length (h2::connection-table connection))))
      (let ((kept (h2:kept-octets connection)))
        (hpack:forget-repeats (h2::connection-decoder connection))
        (is (= kept (h2:kept-octets connection)) "the decoder has kept repeats"))
      (hears `(:headers ,(request :get :end t) :ok :end-stream))
      (is (zerop (h2:connection-stream-count connection))))))

(test the-pool-keeps-no-finished-connection
  (let ((pool (h2:make-pool)) (sink (h2:make-sink)) (options (make-options)))
    (flet ((connection () (h2:make-connection :client sink options :pool pool))
           (use (connection &rest ids)
             (dolist (stream (loop for id in ids collect (h2::take-stream connection id)))
               (setf (h2::stream-state stream) h2::+closed+)
               (h2:release-stream stream)
               (h2::finish-stream stream)))
           (pooled ()
             (loop for stream = (h2::pool-streams pool) then (h2::stream-next stream)
                   while stream collect (h2:stream-connection stream))))
      (let ((first (connection)) (second (connection)))
        (use first 1 3 5)
        (is (equal (list first first first) (pooled)))
        (use second 1)
        (is (equal (list second first first) (pooled)))
        (h2:receive-eof first)
        (is (equal (list second) (pooled)))
        (is (= 1 (h2::pool-stream-count pool)))
        (h2:receive-eof second)
        (is (null (pooled)))))))

(test streams-are-used-again
  "Only a stream that was both closed and released is used again, in either order."
  (let ((*dialogue* (begin-dialogue :client '())))
    (shake-hands)
    (flet ((call (release-early release-late)
             (let ((stream (find-stream (request :get :end t))))
               (when release-early (h2:release-stream stream))
               (hears `(:headers ,(h2:stream-id stream) :ok :end-stream))
               (when release-late (h2:release-stream stream))
               stream)))
      (let ((kept (call nil nil)))
        (is (not (eq kept (call nil nil)))))
      (let ((early (call t nil)))
        (is (eq early (call nil t)))
        (is (eq early (call nil nil)))))))

(test a-waiting-stream-that-is-reset-is-used-again
  "A stream that is reset while it is among the writers leaves them."
  (let ((*dialogue* (begin-dialogue :server '())))
    (shake-hands)
    (hears '(:headers 1 :get :end-stream) '(:headers 3 :get :end-stream))
    (dolist (id '(1 3))
      (respond id :ok)
      (h2:send-data (find-stream id) (make-octets 60000) 0 60000 nil))
    (flush)
    (let ((stream (find-stream 3)))
      (h2:reset-stream stream 8)
      (h2:release-stream stream)
      (hears '(:headers 5 :get :end-stream))
      (is (eq stream (find-stream 5)))
      (respond 5 :ok)
      (h2:send-data stream (make-octets 1000) 0 1000 nil)
      (is-false (h2:stream-queue-empty-p stream))
      (hears '(:window-update 0 1000))
      (flush)
      (is-true (h2:stream-queue-empty-p stream)))))

(defun writers (connection)
  "The identifiers of the streams of CONNECTION that take turns to write."
  (loop for stream = (h2::connection-ring-head connection) then (h2::stream-ring-next stream)
        while stream
        collect (h2:stream-id stream)))

(test streams-that-are-reset-are-not-kept
  "A stream that ends while earlier ones wait for the connection's window is not kept."
  (let ((*dialogue* (begin-dialogue :server '())) (octets (make-octets 70000)))
    (shake-hands)
    (loop for id from 1 to 199 by 2
          do (hears (list :headers id :get :end-stream))
             (respond id :ok)
             (h2:send-data (find-stream id) octets 0 70000 nil)
             (flush)
             (unless (member id '(1 51))
               (hears (list :rst-stream id :cancel))))
    (is (equal '(51) (writers (connection)))) ; the window of 1 is used up as well
    (hears '(:window-update 1 10))
    (is (equal '(51 1) (writers (connection))))
    (hears '(:rst-stream 1 :cancel))
    (is (equal '(51) (writers (connection))))
    (hears '(:rst-stream 51 :cancel))
    (is (null (writers (connection))))))

(test streams-are-looked-at-only-while-they-are-the-connections
  "A function that visits the streams of a connection ends another one, whose structure another
connection uses again: the function does not get that."
  (let* ((pool (h2:make-pool)) (peer (make-peer)) (buffer (make-buffer)) (begun nil) first second
         (options (make-options))
         (sink (h2:make-sink
                :on-output (lambda (connection) (declare (ignore connection)) buffer)
                :on-reset (fn (_stream _code _source)
                            (unless begun
                              (h2:reset-stream second 8)
                              (setf begun (h2:open-stream first))
                              (send-headers begun *request-fields* nil)))
                :on-stream-closed #'h2:release-stream)))
    (labels ((connect ()
             (let ((connection (h2:make-connection :client sink options :pool pool)))
               (h2:start-connection connection 0)
               (tell connection '(:settings))
               connection))
           (tell (connection &rest frames)
             (let ((octets (frames-octets peer frames)))
               (h2:receive-octets connection octets 0 (length octets) 0))))
      (setf first (connect))
      (let ((leaving (connect)))
        (send-headers (h2:open-stream leaving) *request-fields* nil)
        (setf second (h2:open-stream leaving))
        (send-headers second *request-fields* nil)
        (tell leaving '(:goaway 0 :no-error))
        (is (eq begun second))
        (is (eq first (h2:stream-connection begun)))
        (is-true (h2:stream-open-p begun))
        (is (zerop (h2:connection-stream-count leaving)))
        (is (= 1 (h2:connection-stream-count first)))))))
