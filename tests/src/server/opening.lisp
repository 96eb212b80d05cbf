;;;; What a connection speaks: a second dialect beside HTTP/2, which gives lines back that begin
;;;; with "ECHO ", and what becomes of connections that nobody knows.

(in-package #:clgrpc.tests.server)
(in-suite :clgrpc.server)

(defun begins-p (text octets start end)
  "True if OCTETS begin with TEXT, :more if they may, else nil."
  (let ((count (min (length text) (- end start))))
    (cond ((mismatch (ascii-octets text) octets :end1 count :start2 start :end2 (+ start count))
           nil)
          ((= count (length text)) t)
          (t :more))))

(defun echo-input (socket octets start end)
  "Give each whole line back."
  (let ((newline (position 10 octets :start start :end end :from-end t)))
    (cond (newline
           (append-octets (loop:connection-output socket) octets :start start :end (1+ newline))
           (1+ newline))
          (t start))))

(defmacro with-echo ((&rest options) &body body)
  "Evaluate BODY while servers know the dialect."
  `(unwind-protect
        (progn
          (wire:add-connection-dialect
           (wire:make-connection-dialect
            :name 'echo
            :opens (lambda (octets start end) (begins-p "ECHO " octets start end))
            :handler (loop:make-handler :input #'echo-input :closed #'wire:link-closed)
            ,@options))
          ,@body)
     (wire:remove-connection-dialect 'echo)))

(defmacro with-plain-socket ((socket address) &body body)
  `(let ((,socket (connect-socket ,address)))
     (unwind-protect (progn ,@body)
       (close-socket ,socket))))

(defun say-text (socket text)
  (let ((octets (ascii-octets text)))
    (sb-bsd-sockets:socket-send socket octets (length octets))))

(defun hear-octets (socket count &key (seconds +patience+))
  "COUNT octets from SOCKET, or fewer if it ends before or they do not come in time."
  (let ((heard (make-octets 0)) (area (make-octets 4096)))
    (loop while (and (< (length heard) count)
                     (sb-sys:wait-until-fd-usable
                      (sb-bsd-sockets:socket-file-descriptor socket) :input seconds nil))
          do (let ((length (nth-value 1 (sb-bsd-sockets:socket-receive socket area nil))))
               (when (zerop length) (return))
               (setf heard (concatenate 'octets heard (subseq area 0 length)))))
    heard))

(defun hear-text (socket count)
  (map 'string #'code-char (hear-octets socket count)))

(defun unready-count (server)
  (ranking-total (server::census-handshakes (server::server-census server))))

(test another-dialect-of-connections
  "A connection is taken over with the octets that it began with, however they come; others speak
HTTP/2 beside it."
  (let ((begun '()))
    (with-echo (:begin (lambda (link) (push link begun)))
      (with-probe (channel :server server) (:ask #'double)
        (is (= 42 (number-of (ask channel (note 21)))))
        (with-plain-socket (socket (grpc:server-address server))
          (say-text socket (lines "ECHO one" "two"))
          (is (string= (lines "ECHO one" "two") (hear-text socket 13)))
          (say-text socket (lines "three"))
          (is (string= (lines "three") (hear-text socket 6)))
          (is (= 1 (length begun)))
          (is (zerop (unready-count server)))
          (is (= 2 (getf (grpc:server-statistics server) :connections))))
        (with-plain-socket (socket (grpc:server-address server))
          (loop for char across (lines "ECHO")
                for i from 1
                do (say-text socket (string char))
                   (is-true (wait-until (lambda () (= 1 (unready-count server)))))
                   (when (= i 4) (return)))
          (say-text socket (lines " slow"))
          (is (string= (lines "ECHO slow") (hear-text socket 10))))
        (is-true (wait-until (lambda () (= 1 (getf (grpc:server-statistics server)
                                                   :connections)))))
        (with-raw-client (peer (grpc:server-address server))
          (is (eq :ok (status-of (ask-raw peer "/lab.Bench/Ask" :data (note-octets 1))))))
        (is (= 42 (number-of (ask channel (note 21)))))))))

(test connections-that-nobody-knows
  "What begins neither dialect, or stops in the middle of an opening, is told so by HTTP/2:
SETTINGS, and a GOAWAY with the reason. Who says nothing hears nothing."
  (with-echo ()
    (with-log ()
      (let ((server (start-probe (list :ask #'double) :preface-timeout-seconds 0.3)))
        (unwind-protect
             (loop for (text reason) in `(("GET / HTTP/1.1" "the peer speaks HTTP/1.1")
                                          ("ECHX" "not an HTTP/2 client preface")
                                          ("PRJ * HTTP" "not an HTTP/2 client preface")
                                          ("E" "no preface and SETTINGS in time")
                                          ("PRI *" "no preface and SETTINGS in time"))
                   do (with-plain-socket (socket (grpc:server-address server))
                        (say-text socket text)
                        (let ((heard (hear-octets socket 100000)))
                          (is (= 4 (aref heard 3)) "~S is not answered with SETTINGS" text)
                          (is-true (search (ascii-octets reason) heard) "~S" text)))
                   finally (with-plain-socket (socket (grpc:server-address server))
                             (is (equalp #() (hear-octets socket 100)))))
          (is (eq t (grpc:stop-server server :drain 5))))))))

(test the-end-of-another-dialect
  "When the server stops it tells a dialect's connections, and ends those that do not end."
  (let ((told '()))
    (with-log ()
      (with-echo (:drain (lambda (link) (push (list :drain link) told))
                  :abandon (lambda (link status text)
                             (declare (ignore text))
                             (push (list status link) told)))
        (let ((server (start-probe (list :ask #'double))))
          (with-plain-socket (socket (grpc:server-address server))
            (say-text socket (lines "ECHO one"))
            (hear-text socket 9)
            (is (null (grpc:stop-server server :drain 0.1)))
            (is (equal '(:unavailable :drain) (mapcar #'first told)))
            (is (string= "" (hear-text socket 1))))))
      (with-echo ()
        (let ((server (start-probe (list :ask #'double))))
          (with-plain-socket (socket (grpc:server-address server))
            (say-text socket (lines "ECHO one"))
            (hear-text socket 9)
            (is (eq t (grpc:stop-server server :drain 5)))
            (is (string= "" (hear-text socket 1)))))))))

(test servers-that-stop-before-anything-was-said
  "A connection that has not said what it speaks is told of the end by HTTP/2."
  (let ((server (start-probe (list :ask #'double))))
    (with-plain-socket (socket (grpc:server-address server))
      (wait-until (lambda () (= 1 (getf (grpc:server-statistics server) :connections))))
      (is (eq t (grpc:stop-server server :drain 5)))
      (let ((heard (hear-octets socket 100000)))
        (is (= 4 (aref heard 3)))))))
