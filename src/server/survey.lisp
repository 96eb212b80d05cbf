;;;; What a running server is doing, for people: its loops, and some of their connections.

(in-package #:clgrpc.server)

(defun survey-link (link)
  "What LINK is, as a plist. On its loop."
  (list :peer (wire:link-peer link)
        :calls (wire:link-calls link)
        :tls (and (wire:link-security link) t)
        :seconds (ns-seconds (max 0 (- (loop:event-loop-now (link-loop link))
                                       (wire:link-born-ns link))))))

(defun survey-hub (hub limit)
  "What the loop of HUB is doing, as a plist, with LIMIT of its connections. On the loop."
  (let ((links (hub-links hub)))
    (list :name (loop:event-loop-name (hub-loop hub))
          :connections (length links)
          :open (hub-open hub)
          :calls (hub-calls hub)
          :turns (loop:event-loop-turns (hub-loop hub))
          :links (loop for i below (min limit (length links))
                       collect (survey-link (aref links i))))))

(defun survey-server (server &key (limit 100))
  "What the loops of SERVER are doing, a list of plists in their order: :NAME; :CONNECTIONS and
:OPEN, how many connections and requests under way it has; :CALLS, how many have ended; :TURNS;
:LINKS, at most LIMIT of its connections, each a plist of :PEER, :CALLS under way, :TLS and :SECONDS
since it began. Of a loop that does not answer within a second only the :NAME. Not on a loop of
SERVER."
  (let ((found (make-hash-table :test 'eq :synchronized t)))
    (call-on-loops server (lambda (hub) (setf (gethash hub found) (survey-hub hub limit))))
    (loop for hub in (reverse (server-hubs server))
          collect (or (gethash hub found)
                      (list :name (loop:event-loop-name (hub-loop hub)))))))

(defun server-speaks-tls-p (server)
  "True if clients of SERVER must speak TLS."
  (and (server-credentials server) t))
