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
