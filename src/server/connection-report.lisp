;;;; A report of a running server for people: the state of its loops and of some of their
;;;; connections.

(in-package #:clgrpc.server)

(defun report-link (link)
  "The state of LINK, as a plist. On its loop."
  (list :peer (server-link-peer link)
        :calls (server-link-calls link)
        :tls (and (loop:connection-security (server-link-socket link)) t)
        :seconds (ns-seconds (max 0 (- (loop:event-loop-now (server-link-loop link))
                                       (server-link-born-ns link))))))

(defun report-server-loop (server-loop limit)
  "The state of the loop of SERVER-LOOP, as a plist, with LIMIT of its connections. On the loop."
  (let ((links (server-loop-links server-loop)))
    (list :name (loop:event-loop-name (server-loop-loop server-loop))
          :connections (length links)
          :open (server-loop-open server-loop)
          :calls (server-loop-calls server-loop)
          :turns (loop:event-loop-turns (server-loop-loop server-loop))
          :links (loop for i below (min limit (length links))
                       collect (report-link (aref links i))))))

(defun report-connections (server &key (limit 100))
  "The states of the loops of SERVER, a list of plists in their order: :NAME; :CONNECTIONS and
:OPEN, the numbers of its connections and of its requests under way; :CALLS, how many have ended;
:TURNS; :LINKS, at most LIMIT of its connections, each a plist of :PEER, :CALLS under way, :TLS and
:SECONDS since it began. A loop that does not answer within a second has only its :NAME. Not on a
loop of SERVER."
  (let ((found (make-hash-table :test 'eq :synchronized t)))
    (call-on-loops server (lambda (server-loop) (setf (gethash server-loop found)
                                                      (report-server-loop server-loop limit))))
    (loop for server-loop in (reverse (server-loops server))
          collect (or (gethash server-loop found)
                      (list :name (loop:event-loop-name (server-loop-loop server-loop)))))))

(defun server-speaks-tls-p (server)
  "True if clients of SERVER must speak TLS."
  (and (server-credentials server) t))
