;;;; The connections that give way to new ones.

(in-package #:clgrpc.tests.server)

(test newcomers-have-half-of-the-room-of-those-that-leave
  "Of 18 connections that may be leaving, 9 are reserved for newcomers that have less than half as
many as the largest user."
  (with-probe (channel :server server) ()
    (loop for (newcomers leaving dismissed) in '((3 17 t) (3 18 nil) (4 8 t) (4 9 nil) (0 17 t))
          do (let ((admission (server::make-admission (server::server-options server) 32)))
               (flet ((usage-of (name count)
                        (let ((entry (server::ensure-entry server admission name)) (last nil))
                          (dotimes (i count)
                            (setf last (server::count-permit admission entry)))
                          (values (server::peer-entry-connections entry) last))))
                 (multiple-value-bind (largest permit) (usage-of "large" 7)
                   (setf (server::admission-leaving admission) leaving)
                   (is (eq (and dismissed permit)
                           (server::dismiss-for admission (usage-of "new" newcomers) largest
                                                (constantly permit)))
                       "~D newcomers, ~D leaving" newcomers leaving)))))))

(defun admission-of (&rest limits)
  "An admission with LIMITS, keywords of it, and a function that returns the outcome of a new
connection of the peer that it is given: its permit, with which nothing has begun, or the option
that forbids it; and the permits that were dismissed, with their options."
  (let ((admission (apply #'server::%make-admission limits)))
    (values admission
            (lambda (server name)
              (let ((entry (server::ensure-entry server admission name)))
                (multiple-value-bind (permit dismissed) (server::try-to-permit admission entry)
                  (when (server::permit-p permit)
                    (enter-ring permit (server::peer-entry-unready entry)))
                  (values permit dismissed)))))))

(test connections-are-admitted-up-to-each-limit
  "At a limit a connection of the peer with the most gives way, unless the newcomer's peer has as
many afterwards; one that is ready, or has ended, no longer counts as a handshake."
  (with-probe (channel :server server) ()
    (multiple-value-bind (admission come)
        (admission-of :max-connections 4 :max-per-peer 3 :max-handshakes 2)
      (flet ((come (name) (funcall come server name))
             (ready (&rest permits)
               (dolist (permit permits) (server::note-permit-ready admission permit)))
             (totals ()
               (list (server::ranking-total (server::admission-connections admission))
                     (server::ranking-total (server::admission-handshakes admission))
                     (server::admission-leaving admission))))
        (let ((first (come "a")) (second (come "a")))
          (multiple-value-bind (other dismissed) (come "b")
            (is (equal `((,first . :max-handshakes)) dismissed))
            (is (equal '(2 2 1) (totals)))
            (ready second other other))
          (is (equal '(2 0 1) (totals)))
          (ready (come "a") (come "a"))
          (is (eq :max-connections-per-peer (come "a")))
          (is (equal '(4 0 1) (totals)))
          (multiple-value-bind (permit dismissed) (come "c")
            (is (equal `((,second . :max-connections)) dismissed))
            (server::note-permit-ready admission permit)
            (is (equal '(4 0 2) (totals)))
            (is (equal '(:max-connections nil) (multiple-value-list (come "b"))) "a has one more")
            (server::uncount-permit admission permit)
            (is (null (gethash "c" (server::admission-peers admission))) "it is forgotten")
            (is (equal '(3 0 2) (totals)))))))))

(test a-lowered-limit-of-connections-is-raised-step-by-step
  (let ((admission (admission-of :max-connections 70 :derived 100)))
    (loop for (now limit) in `((,server::+calm-ns+ 70) (,(1+ server::+calm-ns+) 86)
                               (,(1+ (* 2 server::+calm-ns+)) 86)
                               (,(+ 2 (* 2 server::+calm-ns+)) 100)
                               (,(* 9 server::+calm-ns+) 100))
          do (server::try-again admission now)
             (is (= limit (server::admission-max-connections admission))))
    (is (= (+ 2 (* 2 server::+calm-ns+)) (server::admission-lowered-ns admission)))))
