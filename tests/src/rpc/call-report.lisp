;;;; The texts in which a call is described.

(in-package #:clgrpc.tests.rpc)

(test stages-are-told-if-they-were-long
  "From half a millisecond on a stage is shown, without the sum of all and the remaining time."
  (flet ((text (&rest plist)
           (with-output-to-string (stream) (rpc::write-spans stream plist))))
    (is (string= "" (text)))
    (is (string= "pick 0.001 s, name look 1.500 s"
                 (text :pick 0.0005d0 :send 0.00049d0 :stage :wait :name-look 1.5d0
                       :total 3d0 :remaining 2d0 :receive nil)))))

(test attempts-are-told-if-there-were-several
  (let ((call (new-call)))
    (flet ((failed (number peer status)
             (rpc:note-failed-attempt call number peer status "no" 1.5d0)
             (rpc::attempts-text call)))
      (is (null (rpc::attempts-text call)))
      (is (null (failed 0 "a:1" :deadline-exceeded)))
      (is (equal "2, DEADLINE_EXCEEDED from a:1 after 1.500 s, ABORTED after 1.500 s"
                 (failed 1 nil :aborted)))
      (is (equal 9 (parse-integer (failed 8 nil :aborted) :junk-allowed t))))))
