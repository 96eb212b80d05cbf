;;;; Connections that do not speak HTTP/2, at a server that does not speak HTTP/1.1; for one that
;;;; does see http/http1.lisp.

(in-package #:clgrpc.tests.server)

(defmacro with-plain-socket ((socket address) &body body)
  `(let ((,socket (connect-socket ,address)))
     (unwind-protect (progn ,@body)
       (close-socket ,socket))))

(defun say-text (socket text)
  "Send TEXT, whose characters are octets, to SOCKET."
  (let ((octets (map 'octets #'char-code text)))
    (sb-bsd-sockets:socket-send socket octets (length octets))))

(defun hear-octets (socket count &key (seconds +patience+))
  "COUNT octets from SOCKET, or fewer if it ends before or they do not arrive in time."
  (let ((heard (make-octets 0)) (area (make-octets 4096)))
    (loop while (and (< (length heard) count)
                     (sb-sys:wait-until-fd-usable
                      (sb-bsd-sockets:socket-file-descriptor socket) :input seconds nil))
          do (let ((length (nth-value 1 (sb-bsd-sockets:socket-receive socket area nil))))
               (when (zerop length) (return))
               (setf heard (concatenate 'octets heard (subseq area 0 length)))))
    heard))

(test connections-that-nobody-knows
  "A connection that begins otherwise, or stops in the middle, gets HTTP/2's answer: SETTINGS, and a
GOAWAY with the reason."
  (with-log ()
    (let ((server (start-probe (list :ask #'double) :preface-timeout-seconds 0.3)))
      (unwind-protect
           (loop for (text reason) in `(("GET / HTTP/1.1" "the peer speaks HTTP/1.1")
                                        ("ECHO" "not an HTTP/2 client preface")
                                        ("PRJ * HTTP" "not an HTTP/2 client preface")
                                        ("E" "not an HTTP/2 client preface")
                                        ("PRI *" "no preface and SETTINGS in time"))
                 do (with-plain-socket (socket (grpc:server-address server))
                      (say-text socket text)
                      (let ((heard (hear-octets socket 100000)))
                        (is (= 4 (aref heard 3)) "~S is not answered with SETTINGS" text)
                        (let ((at (search (ascii-octets reason) heard)))
                          (is-true at "~S" text)
                          (is (= http2:+protocol-error+ (u32be heard (- at 4))) "~S" text)))))
        (is (eq t (grpc:stop-server server :drain 5)))))))

(test servers-that-stop-before-anything-was-said
  "A connection whose protocol is not known gets the server's end by HTTP/2."
  (let ((server (start-probe (list :ask #'double))))
    (with-plain-socket (socket (grpc:server-address server))
      (wait-until (lambda () (= 1 (getf (grpc:server-statistics server) :connections))))
      (is (eq t (grpc:stop-server server :drain 5)))
      (let ((heard (hear-octets socket 100000)))
        (is (= 4 (aref heard 3)))))))

;;; In memory

(defun answer-http (server-loop &optional (function (fn (&rest _request) 204)))
  "Let FUNCTION answer all plain requests of SERVER-LOOP."
  (let ((server (server::server-loop-server server-loop)))
    (setf (server::server-loop-http server-loop)
          (server::make-server-loop-http server
                                         (server::make-server-router server '() function
                                                                     :inline)))))

(defun connects (server-loop)
  "A peer of SERVER-LOOP connects and sends nothing. Return the link."
  (link-of (memory:connects (lambda (transport) (server::accept-link server-loop transport)))
           server-loop))

(test connections-of-mute-peers
  "A peer that sends nothing, and need not speak HTTP/2, gets nothing, and its connection is closed
in time; a peer that has sent a part of anything, or can only speak HTTP/2, gets HTTP/2's answer."
  (loop for (octets http1 silent) in '((0 t t) (1 t nil) (0 nil nil))
        do (with-server-loop (server-loop :options '(:preface-timeout-seconds 5)) (:ask #'double)
             (when http1 (answer-http server-loop))
             (let ((link (connects server-loop)))
               (memory:say memory:*world* memory:*end* (subseq dialogue:*preface* 0 octets))
               (memory:passes 4.9)
               (memory:silent)
               (is (null (server::server-link-failure link)))
               (memory:passes 0.2)
               (if silent
                   (memory:silent)
                   (is (equal '(:settings :goaway)
                              (remove :window-update (mapcar #'first (memory:said))))))
               (is-true (clgrpc.tests.world:end-shut memory:*end*))
               (is (search (if silent
                               "the peer has sent nothing in time"
                               "no preface and SETTINGS in time")
                           (server::server-link-failure link)))
               (memory:hangs-up)
               (memory:passes 1)
               (is (zerop (server::server-loop-link-count server-loop)))))))

(test connections-that-have-yet-to-speak
  "A connection begins nothing before its protocol is known, and its time counts from its
acceptance."
  (with-server-loop (server-loop :options '(:preface-timeout-seconds 5)) (:ask #'double)
    (answer-http server-loop)
    (let ((link (connects server-loop)))
      (memory:passes 1)
      (memory:say memory:*world* memory:*end* (subseq dialogue:*preface* 0 3))
      (memory:silent)
      (is (null (wire::link-http2 link)))
      (memory:passes 1)
      (memory:say memory:*world* memory:*end* (subseq dialogue:*preface* 3))
      (is (eq :settings (first (first (memory:said)))))
      (memory:passes 3.1)
      (is (search "no preface and SETTINGS in time" (server::server-link-failure link))))))
