;;;; Bad input: random octets, random frames, and recorded sessions with octets changed, cut out or
;;;; doubled. Whatever comes, nothing is signalled, what goes out is well-formed, and a connection
;;;; that ends says so once, by GOAWAY and ON-CLOSE.

(in-package #:clgrpc.tests.http2)
(in-suite :clgrpc.http2)

(defun careless-owner ()
  "A sink that answers at random, rightly."
  (flet ((maybe (stream)
           (case (random 4)
             (0 (h2:reset-stream stream h2:+cancel+))
             (1 (when (h2:stream-sendable-p stream)
                  (unless (h2::stream-flag-p stream h2::+sent-headers+)
                    (send-headers stream *response-fields* nil)
                    (h2:send-data stream (random-octets 100) 0 100 t)))))))
    (list :on-headers (lambda (stream list end-p) (declare (ignore list end-p)) (maybe stream))
          :on-data (lambda (stream octets start end end-p)
                     (declare (ignore octets end-p))
                     (h2:consume-data stream (- end start))
                     (maybe stream))
          :on-stream-closed #'h2:release-stream)))

(defun survives (role octets)
  "Give OCTETS in random pieces to a fresh connection in ROLE; true if all is well."
  (let* ((closes 0)
         (end (apply #'connect-end role
                     :on-close (lambda (connection code text)
                                 (declare (ignore connection code text))
                                 (incf closes))
                     (careless-owner)))
         (peer (make-peer))
         (said (take-output end))
         (start 0))
    (when (eq role :client)
      (setf said (subseq said 24))
      (loop repeat 3 do (send-headers (h2:open-stream (end-connection end)) *request-fields* nil)))
    (loop for cut = (min (length octets) (+ start 1 (random 200)))
          for taken = (give end (subseq octets start cut))
          do (setf said (concatenate 'octets said (take-output end)))
             (incf start taken)
          until (or (= cut (length octets)) (zerop taken)))
    (let ((forms (read-frame-forms peer said))
          (closed-p (h2:connection-closed-p (end-connection end))))
      (and (= closes (count :goaway forms :key #'first) (if closed-p 1 0))
           (or (not closed-p) (eq :goaway (first (first (last forms)))))
           (or (not closed-p) (zerop (h2:connection-stream-count (end-connection end))))))))

(defun session-octets (role)
  "A session that is right, as a peer of ROLE sends it."
  (let ((peer (make-peer)))
    (concatenate 'octets
      (if (eq role :server) *preface* (octets-of))
      (frames-octets peer '((:settings (:initial-window-size 70000) (:max-frame-size 20000))
                            (:settings-ack)))
      (if (eq role :server)
          (frames-octets peer '((:headers 1 :post) (:data 1 "hello" (:pad 5)) (:data 1 50)
                                (:priority 1 0) (:headers 1 :done :end-stream)
                                (:headers 3 :get :end-stream (:pad 3)) (:ping 1)
                                (:headers 5 :post (:depends 3)) (:rst-stream 5 :cancel)
                                (:window-update 3 100) (:window-update 0 100)
                                (:headers 7 :post) (:data 7 "" :end-stream) (:goaway 0 :no-error)))
          (frames-octets peer '((:headers 1 :continue) (:headers 1 :ok) (:data 1 "hello" (:pad 5))
                                (:headers 1 :done :end-stream) (:ping-ack 3) (:headers 3 :ok)
                                (:data 3 400 :end-stream) (:window-update 5 100)
                                (:settings (:header-table-size 100)) (:goaway 5 :no-error)
                                (:headers 5 :ok :end-stream)))))))

(defun mutate (octets)
  "OCTETS with one to four small changes."
  (loop repeat (1+ (random 4))
        do (let ((at (random (length octets))))
             (setf octets
                   (ecase (random 4)
                     (0 (let ((copy (copy-seq octets)))
                          (setf (aref copy at) (random 256))
                          copy))
                     (1 (let ((copy (copy-seq octets)))
                          (setf (aref copy at) (logxor (aref copy at) (ash 1 (random 8))))
                          copy))
                     (2 (concatenate 'octets (subseq octets 0 at)
                                     (subseq octets (min (length octets) (+ at (random 20))))))
                     (3 (concatenate 'octets (subseq octets 0 (min (length octets)
                                                                   (+ at (random 20))))
                                     (subseq octets at))))))
        finally (return octets)))

(defun random-frames (count)
  "Frames with sensible headers and senseless payloads."
  (apply #'concatenate 'octets
         (loop repeat count
               collect (let ((length (random 30)))
                         (concatenate 'octets
                                      (octets-of 0 0 length (random 11) (random 256) 0 0 0
                                                 (random 12))
                                      (random-octets length))))))

(defmacro check-survival (count role octets)
  `(is (loop repeat ,count always (survives ,role ,octets))))

(test right-sessions
  "The sessions that are mutated below are right."
  (with-random (right-sessions)
    (dolist (role '(:server :client))
      (let ((end (apply #'connect-end role (careless-owner)))
            (octets (session-octets role)))
        (when (eq role :client)
          (loop repeat 3
                do (send-headers (h2:open-stream (end-connection end)) *request-fields* nil)))
        (is (= (length octets) (give end octets)))
        (is (not (h2:connection-closed-p (end-connection end))))))))

(test mutated-sessions
  "Sessions with small changes."
  (with-random (mutated-sessions)
    (dolist (role '(:server :client))
      (let ((octets (session-octets role)))
        (check-survival 3000 role (mutate octets))))))

(test random-input
  "Random octets from the start, after the preface, and after SETTINGS; random frames."
  (with-random (random-input)
    (let ((settings (concatenate 'octets *preface* (frames-octets (make-peer) '((:settings))))))
      (check-survival 300 :server (random-octets (random 100)))
      (check-survival 300 :client (random-octets (random 100)))
      (check-survival 300 :server (concatenate 'octets *preface* (random-octets (random 100))))
      (check-survival 1000 :server (concatenate 'octets settings (random-octets (random 300))))
      (check-survival 3000 :server (concatenate 'octets settings (random-frames 20))))))
